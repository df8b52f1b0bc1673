"""The masters' own group: its replica of the sys catalog, its members, its peers."""
