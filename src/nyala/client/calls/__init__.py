"""Calls of the client as both of its interfaces make them: arguments, and coroutines on its loop."""
