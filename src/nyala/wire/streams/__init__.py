"""Protocols over the stream port."""
