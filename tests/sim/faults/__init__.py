"""Faults: which ones, when, and how they are injected."""
