"""Files as the product sees them: append, sync, rename, preallocate, map, list.

`Files` is the protocol; `SystemFiles` the real one. All calls block: run them in a pool
(`tasks.run(Lane.DISK, ...)`) except tiny ones at start. Paths are plain strings with `/`.
An `OSError` is passed on unchanged: the caller decides which replicas it affects.
"""

import contextlib
import mmap
import os
import shutil
from collections.abc import Sequence
from typing import Protocol

from nyala.env.behind import NewFile, WriteBehindFile
from nyala.env.direct import DirectWriter
from nyala.env.mapped import guard

Buffer = bytes | bytearray | memoryview


class AppendFile(Protocol):
    """One file open for appending. Its owner tracks the offset; one writer at a time."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the buffers, in order, after what was appended; return the new end offset."""
        ...

    def sync(self, *, data_only: bool) -> None:
        """Make everything appended durable. `data_only` suffices inside the preallocated length."""
        ...

    def release(self) -> None:
        """Drop durable bytes from the page cache: they are not read again soon."""
        ...

    def preallocate(self, length_bytes: int) -> None:
        """Reserve disk space up to this length; the reserved part reads as zeros."""
        ...

    def truncate(self, length_bytes: int) -> None:
        """Cut or extend the file to this length; the next append goes to its end."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class Files(Protocol):
    """A file system, real or simulated."""

    def open_append(self, path: str, offset: int = 0, *, direct: bool = False) -> AppendFile:
        """Open (create if missing) for appending from `offset` on.

        Args:
            path: of the file.
            offset: in bytes.
            direct: written past the page cache where that is possible, as it is not read soon.
        """
        ...

    def open_new(self, path: str) -> NewFile:
        """Create a large file that is not read soon; it is written while the next part is produced."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; fewer than asked for at its end.

        Args:
            path: of the file.
            offset: in bytes.
            length: in bytes.
        """
        ...

    def map(self, path: str) -> memoryview:
        """Return a read-only view of a whole file; it stays valid after the file is removed."""
        ...

    @property
    def intact(self) -> bool:
        """Whether every page of every mapped file could be read when it was touched: the rule."""
        ...

    def unreadable_offset(self, mapped: memoryview) -> int | None:
        """Return the offset of a page of a mapped file that could not be read, and reads as zeros."""
        ...

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file durably: write beside it, sync, rename, sync the directory."""
        ...

    def write_new(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write a whole new file and sync it. Its name is durable only after `sync_dir`."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename; durable only after `sync_dir` of the target's directory."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is not there."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; no error if it is not there."""
        ...

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; no error if it is there. Synced into its parent."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it is not there."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        ...

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        ...

    def free_bytes(self, path: str) -> int:
        """Free space of the file system that holds `path`."""
        ...

    def lock(self, path: str) -> bool:
        """Take an exclusive lock on a file for this process's life; False if another has it."""
        ...


class SystemAppendFile:
    """A real file open for appending."""

    def __init__(self, path: str, offset: int, *, direct: bool = False) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._direct = DirectWriter(path) if direct else None
        self._end = offset
        self._durable = offset
        self._released = offset

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Write the buffers with vectored writes; return the new end offset."""
        queue = [memoryview(b).cast("B") for b in buffers if len(b)]
        while queue:
            written = 0 if self._direct is None else self._direct.write(queue[0], self._end)
            written = written or os.pwritev(self._fd, queue[:512], self._end)
            self._end += written
            while queue and written >= len(queue[0]):
                written -= len(queue.pop(0))
            if written:
                queue[0] = queue[0][written:]
        return self._end

    def sync(self, *, data_only: bool) -> None:
        """Sync data alone, or data and file facts."""
        end = self._end
        (os.fdatasync if data_only else os.fsync)(self._fd)
        self._durable = end

    def release(self) -> None:
        """Let the kernel have the pages for what is written next; it keeps those that are not durable."""
        if hasattr(os, "posix_fadvise"):
            size = self._durable - self._released
            os.posix_fadvise(self._fd, self._released, size, os.POSIX_FADV_DONTNEED)
        self._released = self._durable

    def preallocate(self, length_bytes: int) -> None:
        """posix_fallocate, so that a full disk is known now and not in mid-append."""
        os.posix_fallocate(self._fd, 0, length_bytes)

    def truncate(self, length_bytes: int) -> None:
        """Cut the file; the next append goes to its end."""
        os.ftruncate(self._fd, length_bytes)
        self._end = length_bytes

    def close(self) -> None:
        """Close without syncing."""
        if self._direct is not None:
            self._direct.close()
        os.close(self._fd)


class SystemFiles:
    """The machine's file system."""

    def __init__(self) -> None:
        self._locks: list[int] = []

    def open_append(self, path: str, offset: int = 0, *, direct: bool = False) -> SystemAppendFile:
        """Open (create if missing) for appending from `offset` on.

        Args:
            path: of the file.
            offset: in bytes.
            direct: written past the page cache where that is possible, as it is not read soon.
        """
        return SystemAppendFile(path, offset, direct=direct)

    def open_new(self, path: str) -> WriteBehindFile:
        """Make a file that is written by a thread, past the system's memory: see `behind.py`."""
        return WriteBehindFile(SystemAppendFile(path, 0, direct=True))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; fewer than asked for at its end.

        Args:
            path: of the file.
            offset: in bytes.
            length: in bytes.
        """
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)

    def map(self, path: str) -> memoryview:
        """Map a file read-only; the pages stay after the file is removed."""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        guard.add(mapped, view)
        return view

    @property
    def intact(self) -> bool:
        """Whether every page of every mapped file of this process could be read when it was touched."""
        return guard.intact

    def unreadable_offset(self, mapped: memoryview) -> int | None:
        """Return the offset of a page that the file no longer has, or its disk cannot read."""
        return guard.unreadable_offset(mapped)

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file durably."""
        beside = path + ".tmp"
        self.write_new(beside, [data])
        os.replace(beside, path)
        self.sync_dir(os.path.dirname(path))

    def write_new(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write a whole new file and sync it."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        with open(fd, "wb") as file:
            for buffer in buffers:
                file.write(buffer)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, source: str, target: str) -> None:
        """Rename within one file system."""
        os.replace(source, target)

    def remove(self, path: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents, each synced into its parent."""
        missing = []
        while path and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory)
            self.sync_dir(os.path.dirname(directory) or ".")

    def sync_dir(self, path: str) -> None:
        """Sync a directory."""
        fd = os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it is not there."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""
        return os.path.exists(path)

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        """Free space for an unprivileged process."""
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def lock(self, path: str) -> bool:
        """Take a flock that the kernel drops when this process ends, however it ends."""
        import fcntl  # POSIX only: a client on another system never locks

        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._locks.append(fd)
        return True
