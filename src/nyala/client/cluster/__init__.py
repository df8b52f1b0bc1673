"""What a client knows of its cluster: the masters, the tables, and where tablets are."""
