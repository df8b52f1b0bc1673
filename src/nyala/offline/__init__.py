"""Tools for the data directory of a server that does not run: inspection, repair, copies."""
