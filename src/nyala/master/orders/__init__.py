"""Orders to tablet servers: derived from catalog and reports, and sent until they are executed."""
