"""Bundles of the state of a cluster, for a diagnosis elsewhere."""
