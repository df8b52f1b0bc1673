"""Tablet copy: sessions at the source, the transfer to the target, and the filling of witnesses with data."""
