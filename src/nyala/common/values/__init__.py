"""Values of columns: exact conversion between Python, Arrow and the types of a table."""
