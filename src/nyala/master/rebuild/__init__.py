"""Rebuilding of a catalog that was lost with all masters, from what tablet servers report."""
