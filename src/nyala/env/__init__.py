"""env: see docs/architecture.md."""
