"""A client's state of its cluster: masters, tables and tablet locations."""
