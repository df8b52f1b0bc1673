"""Writes: batching, coalescing, sequence numbers, delivery to tablet leaders."""
