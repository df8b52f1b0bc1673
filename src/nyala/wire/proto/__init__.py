"""wire/proto: see docs/architecture.md."""
