"""tserver: see docs/architecture.md."""
