"""Functions of data frames: reading tables, distributing rows by tablet, merging them into a table."""
