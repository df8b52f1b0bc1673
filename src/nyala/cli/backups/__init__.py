"""Verbs of backups."""
