"""Reads: scan tokens, plans, ordered merges, snapshots, look-ups by key."""
