"""The outside world as a parameter: clock, randomness, files, tasks and calls."""
