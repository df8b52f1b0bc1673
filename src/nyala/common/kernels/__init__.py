"""Numba kernels of keys and hashes, and the folder in which all kernels are cached."""
