"""Reads: views, scans, look-ups, the change feed, checksums."""
