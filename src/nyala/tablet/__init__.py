"""tablet: see docs/architecture.md."""
