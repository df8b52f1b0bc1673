"""Folders in which programs of a user keep files for later ones."""
