"""Journals at a tablet server: steps, reads, tails."""
