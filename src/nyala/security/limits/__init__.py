"""Bounds of what each caller may use of a server."""
