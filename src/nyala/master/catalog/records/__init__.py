"""Records of the catalog, and the rows that hold them."""
