"""Numba kernels, all of which are loaded together so that they are cached in one folder."""

from nyala.common.kernels import cache

with cache.used():
    from nyala.tablet.kernels import (
        gather_values,
        ipc_messages,
        key_bytes,
        key_index,
        live_versions,
        row_decisions,
        sort_rows,
    )

__all__ = [
    "gather_values", "ipc_messages", "key_bytes", "key_index", "live_versions", "row_decisions",
    "sort_rows",
]  # fmt: skip
