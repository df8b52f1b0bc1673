"""Complete scripts; each is run by a test."""
