"""Servers that crash, pause or lose a disk while tables are in use."""
