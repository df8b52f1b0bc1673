"""Memory that large messages are received into: many in one slab, which is used again when all have gone.

Memory that is touched for the first time costs more than everything else of a scan: the kernel clears it,
page by page, and large pages cost a fifth of small ones.
"""

import mmap
import sys

import numpy as np
import numpy.typing as npt

SLAB_BYTES = 16 << 20
KEPT = 4
"""Slabs kept for reuse, beside those that are still referenced."""
SMALL_BYTES = 64 << 10
"""A smaller message has memory of its own: it would keep a whole slab."""
_ALIGNMENT = 4096
"""Of what lies in a slab: a page, so that a disk may take it from there (env/direct.py)."""


class Slabs:
    """Allocates memory in slabs, which are reused when no reference is left. One thread only."""

    def __init__(self) -> None:
        self._slabs: list[npt.NDArray[np.uint8]] = []  # the last one is being filled
        self._used = 0

    def take(self, size: int) -> memoryview:
        """Return writable memory of a size, at an aligned address."""
        if size < SMALL_BYTES:
            return memoryview(bytearray(size))
        if size > SLAB_BYTES // 4:
            return np.empty(size, np.uint8).data
        if not self._slabs or self._used + size > SLAB_BYTES:
            self._turn()
        slab, begin = self._slabs[-1], self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return slab[begin : begin + size].data

    def _turn(self) -> None:
        """Continue with an unreferenced slab, or else with a new one."""
        slabs, self._used = self._slabs, 0
        for number in range(len(slabs)):
            if sys.getrefcount(slabs[number]) == 2:  # the list's reference, and this call's
                slabs.append(slabs.pop(number))
                return
        slabs.append(_fresh())
        del slabs[:-KEPT]


def _fresh() -> npt.NDArray[np.uint8]:
    memory = mmap.mmap(-1, SLAB_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
