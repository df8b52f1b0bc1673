"""Direct writes, past the page cache: for files that are not read soon, such as a copy's.

A page of the system's memory that is written to for the first time is cleared, filled, and written back
later; from a file server's slabs the disk takes whole pages itself, for a third of the time.
"""

import errno
import os

import numpy as np

PAGE = 4096
"""Addresses, offsets and sizes of direct writes are multiples of this."""


class DirectWriter:
    """Writes whole pages of one file, where file system and memory allow it.

    Args:
        path: of the file, which exists.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        flag = getattr(os, "O_DIRECT", 0)
        if flag:
            try:
                self._fd = os.open(path, os.O_WRONLY | flag)
            except OSError as err:
                if err.errno != errno.EINVAL:  # the file system has no such writes
                    raise

    def write(self, data: memoryview, offset: int) -> int:
        """Write as many whole pages as can be, and return their bytes; 0: write all of it another way."""
        size = len(data) - len(data) % PAGE
        if self._fd < 0 or not size or offset % PAGE or _address(data) % PAGE:
            return 0
        try:
            return os.pwrite(self._fd, data[:size], offset)
        except OSError as err:
            if err.errno != errno.EINVAL:  # the disk wants larger pages
                raise
            self.close()
            return 0

    def close(self) -> None:
        """Close; `write` writes nothing from then on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _address(data: memoryview) -> int:
    at: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return at
