"""The master: the catalog, its operations, and the orders to tablet servers that carry them out."""
