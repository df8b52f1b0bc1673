"""Servers that die, stop, or lose a disk, while tables are used."""
