"""web: see docs/architecture.md."""
