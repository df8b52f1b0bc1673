"""Operations that are under way, in this leader or by the catalog, and what each waits for."""
