"""Consensus as a pure machine, after Ongaro's dissertation: inputs go in, `Ready` comes out."""
