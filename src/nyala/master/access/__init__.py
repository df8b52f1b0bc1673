"""Operations on join tokens and revoked certificates."""
