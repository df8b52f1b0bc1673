"""Writes: replicated operations, row checks, and their application to the rowsets."""
