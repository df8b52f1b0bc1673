"""Change feeds that are followed: waits for new changes."""
