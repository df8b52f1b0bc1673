"""Consensus as a deterministic state machine without I/O, after Ongaro's dissertation."""
