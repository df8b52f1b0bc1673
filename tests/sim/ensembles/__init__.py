"""Ensembles: coordinators, their servers and clients over a simulated journal, and what must hold of them."""
