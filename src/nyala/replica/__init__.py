"""replica: see docs/architecture.md."""
