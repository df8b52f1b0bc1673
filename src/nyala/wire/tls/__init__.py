"""TLS: checks of callers, and reasons of failures."""
