"""Partitions of tables: their definition, the tablet of a row, the tablets that a predicate can match."""
