"""Orders to tablet servers: derived from catalog and reports, sent until they are carried out."""
