"""Reads of the latest rows at a leader: by a read round, or by its read lease."""
