"""Deletes and updates of the rows that a predicate selects."""
