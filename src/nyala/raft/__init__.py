"""raft: see docs/architecture.md."""
