"""Example job: a year of flights out of New York, loaded as a stream of changes."""
