"""Backups and restores, against a small cluster."""
