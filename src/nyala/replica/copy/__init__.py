"""Copies of replicas: sessions at the source, the copy at the target, witnesses that get data."""
