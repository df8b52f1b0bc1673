"""Definitions: operations on the catalog, from request to plan, and what follows in the background."""
