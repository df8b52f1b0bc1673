"""Logging in: a user's password, or a token of an issuer, is exchanged for a certificate of some hours."""
