"""Freed memory that the C allocator keeps, and its return to the system.

Servers run with an allocator that is told to keep what is freed (`nyala.testing.forkserver` says why). What
it keeps is bounded here: beyond the bound, all of it is returned. Where the C library cannot tell, nothing is
done.
"""

import ctypes
import logging

from nyala.env.env import Env
from nyala.env.tasks import Lane

log = logging.getLogger(__name__)

CHECK_INTERVAL_MS = 1000
"""Between two looks."""


class _Info(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks",
            "keepcost",
        )
    )  # fmt: skip


class Allocator:
    """The allocator of this process. Any thread."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        if self._info is not None:
            self._info.restype = _Info

    def free_bytes(self) -> int:
        """Return how much memory is free and was not returned; 0 where the C library cannot tell."""
        return int(self._info().fordblks) if self._info is not None else 0

    def trim(self) -> None:
        """Return free memory to the system. It takes milliseconds for each gigabyte."""
        if self._trim is not None:
            self._trim(0)


async def bound_free_memory(env: Env, most_bytes: int) -> None:
    """Return free memory to the system whenever there is too much of it; does not end.

    Args:
        env: tasks.
        most_bytes: what may stay free.
    """
    allocator = Allocator()

    def check() -> None:
        free = allocator.free_bytes()
        if free > most_bytes:
            allocator.trim()
            log.debug("returned %d of %d free bytes", free - allocator.free_bytes(), free)

    while True:
        await env.tasks.sleep_ms(CHECK_INTERVAL_MS)
        await env.tasks.run(Lane.COMPUTE, check)
