"""Directed scenarios: one fault or operation each, on the simulated cluster."""
