"""Kinds of state machines that a group may replicate, by number and by the file that names the others."""
