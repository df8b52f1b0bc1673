"""Faults: their kinds and times, and their injection."""
