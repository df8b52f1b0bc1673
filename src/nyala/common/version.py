"""Version of the release, and of the protocol that servers send in their registration."""

VERSION = "0.2.0"
"""Release version, as in pyproject.toml."""
PROTOCOL_VERSION = 2
"""Protocol version, incremented when the meaning of messages changes; used once all servers support it."""
TRANSACTIONS = 2
"""First protocol version of servers that have transactions."""
