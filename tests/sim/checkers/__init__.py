"""Checkers of invariants at each step and at the end."""
