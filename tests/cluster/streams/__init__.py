"""Streams of rows from and to real servers: memory, and faults."""
