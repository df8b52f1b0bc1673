"""Journals of a client: steps, reads and tails; `Journal`, `Log` and `StepBuilder` are the public API."""
