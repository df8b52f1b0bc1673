"""Frames of the two own transports (the peer port and the stream port): checks of a header, receive buffers.

Each port has its own header (`frames.py`, `stream_frames.py`). What receives it is the same: magic, version
and size are checked before anything else of a frame is used, complete frames are decoded where they were
received, and large bodies go to slabs. No sockets here; `connection.py` has those.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nyala.common.errors import BadVersion, Corrupt
from nyala.env.direct_io import page_aligned

SLAB_BYTES = 16 << 20
KEPT = 4
"""Number of slabs kept for reuse, beside those that are still referenced."""
SMALL_BYTES = 64 << 10
"""Size, in bytes, below which a message is copied to its own memory, so that it does not pin a slab."""
_ALIGNMENT = 4096
"""Alignment of data in a slab, in bytes: one page, as direct writes need it (env/direct_io.py)."""


@dataclass(frozen=True, slots=True)
class FrameFormat:
    """Magic and version of a port's frames.

    Attributes:
        magic: first bytes of each frame.
        version: the only one that this build reads.
        port: the port, for errors.
        frame: one of its frames, for errors.
    """

    magic: bytes
    version: int
    port: str
    frame: str

    def check(self, magic: bytes, version: int) -> None:
        """Check the first two fields of a header.

        Raises:
            Corrupt: not a frame.
            BadVersion: a frame of a version that this build does not know.
        """
        if magic != self.magic:
            raise Corrupt(
                f"the {self.port} received bytes that are no frame: they begin with {magic!r}"
            )
        if version != self.version:
            raise BadVersion(
                f"{self.frame} of version {version}, and this build reads version {self.version}: the sender "
                "is of another build; upgrade the older of the two"
            )

    def check_size(self, size: int, max_bytes: int) -> None:
        """Check the size that a header claims, before memory is allocated for it.

        Raises:
            Corrupt: over the limit; details: `why` = "oversized", `limit` and `size`.
        """
        if size > max_bytes:
            raise Corrupt(
                f"{self.frame} claims {size} bytes; the limit is {max_bytes}",
                {"why": "oversized", "limit": str(max_bytes), "size": str(size)},
            )


class ReceiveBuffer:
    """Receive buffer of one connection: complete frames are used in place, the rest moves to the front.

    It grows with the bytes that were received, not with the size that a header claims.

    Args:
        initial_bytes: initial size of the buffer; doubled while a frame fills it.
        kept_bytes: a buffer above this size is replaced once it is empty.

    Attributes:
        filled: bytes in the buffer, of a frame that is not complete.
    """

    def __init__(self, initial_bytes: int, kept_bytes: int) -> None:
        self.filled = 0
        self._initial_bytes = initial_bytes
        self._kept_bytes = kept_bytes
        self._data = memoryview(bytearray(initial_bytes))
        self._stopped = False

    def room(self) -> memoryview:
        """Return the memory for the next bytes."""
        return self._data[self.filled :]

    def take(self, count: int, use: Callable[[memoryview], int]) -> None:
        """Use the complete frames, of which `count` bytes more are in the buffer.

        Args:
            count: bytes received into `room()`.
            use: called with the bytes from the beginning of a frame on; returns how many it has used, 0: the
                frame is not complete. May call `stop`. It keeps no view of the bytes.
        """
        if self._stopped:
            return
        self.filled += count
        at = 0
        while not self._stopped and (used := use(self._data[at : self.filled])):
            at += used
        if not self._stopped:
            self._keep(at)

    def stop(self) -> None:
        """Drop the incomplete frame and everything received from now on."""
        self._stopped = True
        self.filled = 0

    def _keep(self, at: int) -> None:
        """Move the bytes from `at` on to the front of a buffer with room for more."""
        left, size = self.filled - at, len(self._data)
        full, emptied = left == size, not left and size > self._kept_bytes
        if full or emptied:
            kept = self._data
            self._data = memoryview(bytearray(2 * left if full else self._initial_bytes))
            self._data[:left] = kept[at : self.filled]
        elif at and left:
            self._data[:left] = bytes(self._data[at : self.filled])
        self.filled = left


class Slabs:
    """Allocates memory in slabs, which are reused when no reference is left. One thread only.

    Memory that is touched for the first time costs more than everything else of a scan: the kernel clears it,
    page by page, and large pages cost a fifth of small ones.

    Args:
        slab_bytes: size of a slab.
    """

    def __init__(self, slab_bytes: int = SLAB_BYTES) -> None:
        self._slab_bytes = slab_bytes
        self._slabs: list[npt.NDArray[np.uint8]] = []  # the last one is being filled
        self._used = 0

    def take(self, size: int) -> memoryview:
        """Return writable memory of a size, at an aligned address."""
        if size < SMALL_BYTES:
            return memoryview(bytearray(size))
        if size > self._slab_bytes // 4:
            return np.empty(size, np.uint8).data
        if not self._slabs or self._used + size > self._slab_bytes:
            self._next_slab()
        slab, begin = self._slabs[-1], self._used
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return slab[begin : begin + size].data

    def _next_slab(self) -> None:
        """Continue with an unreferenced slab, or else with a new one."""
        slabs, self._used = self._slabs, 0
        for number in range(len(slabs)):
            if sys.getrefcount(slabs[number]) == 2:  # the list's reference, and this call's
                slabs.append(slabs.pop(number))
                return
        slabs.append(page_aligned(self._slab_bytes))
        del slabs[:-KEPT]
