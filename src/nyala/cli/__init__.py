"""The command line: thin commands over `nyala.client`, `nyala.operate` and `nyala.offline`."""
