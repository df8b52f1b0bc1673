"""Encoded keys: their order-preserving encoding, many of them in one buffer, their hashes."""
