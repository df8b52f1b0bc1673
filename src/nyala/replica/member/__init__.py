"""One member of a group while it takes part: its core, and the parts that act on what the core says."""
