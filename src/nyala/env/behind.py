"""New files that are written while what comes next is put together, past the system's memory.

What is appended is gathered in pages of our own, and a thread hands whole buffers to the disk: it computes
nothing. A flush of a store thus waits for the disk only where that is slower than the flush.
"""

import mmap
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import numpy as np
import numpy.typing as npt

BUFFER_BYTES = 4 << 20
_BUFFERS = 2


class NewFile(Protocol):
    """One file, written front to back."""

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Take the buffers, in order, after what was appended; return the new end offset."""
        ...

    def sync(self, *, data_only: bool) -> None:
        """Make everything appended durable; until then it need not be in the file."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class WriteBehindFile:
    """Takes what is appended at once; it is in the file when `sync` returns.

    Args:
        file: new and empty; only one thread at a time is in it.
    """

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, "file-behind")
        self._buffers = [_fresh() for _ in range(_BUFFERS)]
        self._writing: Future[int] | None = None
        self._used = 0
        self._end = 0

    def append(self, buffers: Sequence[bytes | bytearray | memoryview]) -> int:
        """Take the buffers, in order; return the new end offset.

        Raises:
            OSError: what was taken before could not be written; the file is of no use.
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
        """Make everything appended durable. Raises OSError as `append`."""
        self._start_write()
        self._wait()
        self._file.sync(data_only=data_only)

    def close(self) -> None:
        """Close without syncing: what was not synced may be missing."""
        self._thread.shutdown()
        self._file.close()

    def _start_write(self) -> None:
        """Let the thread write the first buffer, and go on with the one that it has written."""
        self._wait()
        full = self._buffers.pop(0)
        self._buffers.append(full)
        self._writing = self._thread.submit(self._file.append, [full[: self._used].data])
        self._used = 0

    def _wait(self) -> None:
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()


_NOTHING = np.empty(0, np.uint8)


def _fresh() -> npt.NDArray[np.uint8]:
    """Return memory at a page's address, which a disk may take from there."""
    memory = mmap.mmap(-1, BUFFER_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
