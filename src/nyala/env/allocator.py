"""Return of freed memory from the C allocator to the system.

Servers run with an allocator that is configured to keep freed memory (see `nyala.testing.forkserver`). The
amount is limited here: above the limit all of it is returned. Without glibc's `mallinfo2` nothing is done.
"""

import ctypes

from nyala.env.env import Env
from nyala.env.tasks import Lane

CHECK_INTERVAL_MS = 1000
"""Interval in milliseconds between two checks."""


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
    """The allocator of this process. Thread-safe."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._info = getattr(library, "mallinfo2", None)
        self._trim = getattr(library, "malloc_trim", None)
        if self._info is not None:
            self._info.restype = _Info

    def free_bytes(self) -> int:
        """Return the bytes that are free and not returned to the system; 0: unknown."""
        return int(self._info().fordblks) if self._info is not None else 0

    def trim(self) -> None:
        """Return free memory to the system.

        Measured: 0.5 s to 0.8 s per GiB, on a busy machine with two cores, for freed chunks of 64 KiB and
        4 KiB among which one in ten was still in use.
        """
        if self._trim is not None:
            self._trim(0)


async def bound_free_memory(env: Env, most_bytes: int) -> None:
    """Return free memory to the system whenever it exceeds a limit; runs forever.

    Args:
        env: runs the checks.
        most_bytes: limit of free memory.
    """
    allocator = Allocator()

    def check() -> None:
        if allocator.free_bytes() > most_bytes:
            allocator.trim()

    while True:
        await env.tasks.sleep_ms(CHECK_INTERVAL_MS)
        await env.tasks.run(Lane.COMPUTE, check)
