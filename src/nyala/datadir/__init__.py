"""The data directory of a server: the `instance` file, its lock, and the identity that it gives a process."""
