"""The catalog: records, the tables in memory, the sys catalog tablet, locks and look-ups."""
