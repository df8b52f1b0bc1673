"""Checkers: what must hold at each step and in the end."""
