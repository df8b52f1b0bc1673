"""Flushes and compactions."""
