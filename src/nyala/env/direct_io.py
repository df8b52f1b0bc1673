"""Direct writes (O_DIRECT), past the page cache, for files that are not read soon, such as copies.

A page of the page cache is cleared, filled and written back; a direct write from a page-aligned buffer takes
a third of the time.
"""

import errno
import os

import numpy as np

PAGE = 4096
"""Alignment of addresses, offsets and sizes of direct writes, in bytes."""


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
