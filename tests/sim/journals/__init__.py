"""Journals in the simulator: their judge, their clients, and the runs of both levels."""
