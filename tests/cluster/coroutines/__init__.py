"""The asynchronous client on real servers."""
