"""Operations of the coordinator."""
