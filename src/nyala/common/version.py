"""The release, and the versions that servers tell each other in their registration."""

VERSION = "0.1.0"
"""As in pyproject.toml."""
PROTOCOL_VERSION = 1
"""Raised when the meaning of messages changes; a cluster uses a new one once all servers know it."""
