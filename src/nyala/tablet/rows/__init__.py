"""Rowsets as readers see them."""
