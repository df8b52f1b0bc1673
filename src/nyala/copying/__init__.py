"""Copies of replicas over the public port: what `replica/` asks for, as calls between any servers."""
