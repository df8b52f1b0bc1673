"""The masters: the catalog, the operations that change it, and the orders that make it true."""
