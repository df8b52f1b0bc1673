"""Direct writes (O_DIRECT), past the page cache, for files that are not read soon, such as copies.

A page of the page cache is cleared, filled and written back; a direct write from a page-aligned buffer takes
a third of the time.
"""

import contextlib
import errno
import mmap
import os

import numpy as np
import numpy.typing as npt

PAGE = 4096
"""Alignment of addresses, offsets and sizes of direct writes, in bytes."""


def page_aligned(size: int) -> npt.NDArray[np.uint8]:
    """Return zeroed memory that begins at a page, in large pages if the system has them.

    It belongs to this process alone. Python maps memory as shared by default: that is never in large pages
    with Linux's defaults, and a forked child would see what its parent writes later.
    """
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without large pages
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


class DirectWriter:
    """Writes whole pages of one file, if file system and buffer allow it.

    Args:
        path: path of an existing file.
    """

    def __init__(self, path: str) -> None:
        self._fd = -1
        flag = getattr(os, "O_DIRECT", 0)
        if flag:
            try:
                self._fd = os.open(path, os.O_WRONLY | flag)
            except OSError as err:
                if err.errno != errno.EINVAL:  # the file system does not support it
                    raise

    def write(self, data: memoryview, offset: int) -> int:
        """Write as many whole pages as possible and return their size; 0: use another write."""
        size = len(data) - len(data) % PAGE
        if self._fd < 0 or not size or offset % PAGE or _address(data) % PAGE:
            return 0
        try:
            return os.pwrite(self._fd, data[:size], offset)
        except OSError as err:
            if err.errno != errno.EINVAL:  # the disk needs a larger alignment
                raise
            self.close()
            return 0

    def close(self) -> None:
        """Close the file; `write` returns 0 from now on."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _address(data: memoryview) -> int:
    at: int = np.frombuffer(data, np.uint8).__array_interface__["data"][0]
    return at
