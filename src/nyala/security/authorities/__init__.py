"""Replacement of a cluster's certificate authority: its successor, trusted certificates, keys of masters."""
