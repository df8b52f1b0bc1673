"""DDL: operations on the catalog, from request to plan, and operations in the background."""
