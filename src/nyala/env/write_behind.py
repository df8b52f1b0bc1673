"""Write-behind files, which a thread writes while the next part is produced.

They bypass the page cache. Appended data is copied to page-aligned buffers, and the thread writes whole
buffers. So a flush waits for the disk only if that is slower than producing the data.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np

from nyala.env.direct_io import page_aligned

BUFFER_BYTES = 4 << 20
_BUFFERS = 2


class NewFile(Protocol):
    """A new file that is written sequentially."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Append the buffers, in order; return the new end offset."""
        ...

    def sync(self, *, data_only: bool) -> None:
        """Make all appended data durable; until then it may not be in the file."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class WriteBehindFile:
    """A file whose appended data is written when `sync` returns.

    Args:
        file: new and empty; used by one thread at a time.
    """

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "file-behind")
        self._buffers = [page_aligned(BUFFER_BYTES) for _ in range(_BUFFERS)]
        self._writing: Future[int] | None = None
        self._used = 0
        self._end = 0

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Append the buffers, in order; return the new end offset.

        Raises:
            OSError: earlier data could not be written; the file is unusable.
        """
        for buffer in buffers:
            data = np.frombuffer(buffer, np.uint8) if len(buffer) else _NOTHING
            self._end += len(data)
            while len(data):
                part = data[: BUFFER_BYTES - self._used]
                self._buffers[0][self._used : self._used + len(part)] = part
                self._used += len(part)
                data = data[len(part) :]
                if self._used == BUFFER_BYTES:
                    self._start_write()
        return self._end

    def sync(self, *, data_only: bool) -> None:
        """Make all appended data durable. Raises OSError as `append`."""
        self._start_write()
        self._wait()
        self._file.sync(data_only=data_only)

    def close(self) -> None:
        """Close without syncing; data that was not synced may be missing."""
        self._thread.shutdown()
        self._file.close()

    def _start_write(self) -> None:
        """Start writing the first buffer, and continue with the one that was written before."""
        self._wait()
        full = self._buffers.pop(0)
        self._buffers.append(full)
        self._writing = self._thread.submit(self._file.append, [full[: self._used].data])
        self._used = 0

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        try:
            if writing is not None:
                writing.result()
        finally:
            writing = None  # its error has this frame and those of the callers


_NOTHING = np.empty(0, np.uint8)
