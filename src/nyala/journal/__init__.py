"""Journals: replicated named logs and a versioned key space; a state machine beside `tablet`."""
