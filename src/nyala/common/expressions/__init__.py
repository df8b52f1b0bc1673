"""Value expressions over columns: their types, their evaluation, and their parser."""
