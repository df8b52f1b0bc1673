"""wal: see docs/architecture.md."""
