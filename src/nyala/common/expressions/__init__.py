"""Expressions and predicates over columns: trees, evaluation, bounds, and the text of `where=`."""
