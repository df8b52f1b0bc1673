"""Journals on an event loop."""
