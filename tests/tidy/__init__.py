"""Lint as ordinary tests: sizes, names, docstrings and the public surface. `./run check` runs them."""
