"""Repair: from the catalog and the latest reports to changes of members, copies and deletions."""
