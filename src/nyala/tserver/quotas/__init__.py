"""Quotas of tables at a tablet server."""
