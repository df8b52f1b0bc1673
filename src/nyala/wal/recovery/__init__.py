"""Opening a log: replay, and the verdict on what was lost."""
