"""Requests of clients to real servers, good and bad."""
