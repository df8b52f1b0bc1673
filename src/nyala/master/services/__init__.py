"""RPC services of a master."""
