"""Masters, tables and tablet locations as a client knows them."""
