"""Segments of the log: their format, files, allocation and parser."""
