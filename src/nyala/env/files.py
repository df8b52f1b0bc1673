"""File system interface: append, sync, rename, preallocate, map, list.

`Files` is the protocol, `SystemFiles` its implementation. All calls block: run them in a lane
(`tasks.run(Lane.DISK, ...)`), except short ones at start. Paths are strings with `/`. An `OSError` is passed
on unchanged: the caller decides which replicas it affects.
"""

import contextlib
import mmap
import os
import shutil
from collections.abc import Sequence
from typing import Protocol

from nyala.env.direct_io import DirectWriter
from nyala.env.mmap_guard import guard
from nyala.env.write_behind import NewFile, WriteBehindFile

Buffer = bytes | bytearray | memoryview


UNFINISHED = ".tmp"
"""Suffix of the file beside another one that `Files.write_atomic` is about to replace."""


class AppendFile(Protocol):
    """A file open for appending, by one writer at a time."""

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers, in order; return the new end offset."""
        ...

    def sync(self, *, data_only: bool) -> None:
        """Make all appended data durable; `data_only` suffices within the preallocated length."""
        ...

    def release(self) -> None:
        """Drop durable bytes from the page cache."""
        ...

    def preallocate(self, length_bytes: int) -> None:
        """Allocate disk space up to a length; the unwritten part reads as zeros."""
        ...

    def truncate(self, length_bytes: int) -> None:
        """Truncate or extend the file; the next append is at its end."""
        ...

    def close(self) -> None:
        """Close without syncing."""
        ...


class Files(Protocol):
    """A file system, real or simulated."""

    def open_append(self, path: str, offset: int = 0, *, direct: bool = False) -> AppendFile:
        """Open a file, created if missing, for appending from `offset` on.

        Args:
            path: path of the file.
            offset: in bytes.
            direct: bypass the page cache if possible, because the file is not read soon.
        """
        ...

    def open_new(self, path: str) -> NewFile:
        """Create a large file that is not read soon, with write-behind."""
        ...

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; fewer than requested at its end.

        Args:
            path: path of the file.
            offset: in bytes.
            length: in bytes; None: to the end.
        """
        ...

    def map(self, path: str) -> memoryview:
        """Return a read-only map of a file; it stays valid after the file is removed."""
        ...

    @property
    def intact(self) -> bool:
        """True if every accessed page of every mapped file could be read."""
        ...

    def unreadable_offset(self, mapped: memoryview) -> int | None:
        """Return the offset of an unreadable page of a mapped file, which reads as zeros; None: none."""
        ...

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file atomically and durably: write a temporary file, sync, rename, sync the directory."""
        ...

    def write_new(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write a new file and sync it; its name is durable only after `sync_dir`."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Rename; durable only after `sync_dir` of the target's directory."""
        ...

    def remove(self, path: str) -> None:
        """Remove a file; no error if it does not exist."""
        ...

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree; no error if it does not exist."""
        ...

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, durably; no error if it exists."""
        ...

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        ...

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it does not exist."""
        ...

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        ...

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        ...

    def free_bytes(self, path: str) -> int:
        """Return the free space of the file system of `path`, in bytes."""
        ...

    def lock(self, path: str) -> bool:
        """Lock a file exclusively until this process exits; False: another process has the lock."""
        ...


def remove_unfinished(files: Files, directory: str) -> None:
    """Remove the files that atomic writes have left in a directory where a crash interrupted them."""
    for name in files.list(directory):
        if name.endswith(UNFINISHED):
            files.remove(f"{directory}/{name}")


class SystemAppendFile:
    """A real file open for appending."""

    def __init__(self, path: str, offset: int, *, direct: bool = False) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._direct = DirectWriter(path) if direct else None
        except OSError:  # no file is left, perhaps: this one must not be lost for each attempt
            os.close(self._fd)
            raise
        self._end = offset
        self._durable = offset
        self._released = offset

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers with vectored writes; return the new end offset."""
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
        """Sync the data, or data and metadata."""
        end = self._end
        (os.fdatasync if data_only else os.fsync)(self._fd)
        self._durable = end

    def release(self) -> None:
        """Drop durable pages from the page cache, so that the kernel reuses them."""
        if hasattr(os, "posix_fadvise"):
            size = self._durable - self._released
            os.posix_fadvise(self._fd, self._released, size, os.POSIX_FADV_DONTNEED)
        self._released = self._durable

    def preallocate(self, length_bytes: int) -> None:
        """Allocate space with posix_fallocate, so that a full disk is detected before an append."""
        os.posix_fallocate(self._fd, 0, length_bytes)

    def truncate(self, length_bytes: int) -> None:
        """Truncate the file; the next append is at its end."""
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
        """Open a file, created if missing, for appending from `offset` on.

        Args:
            path: path of the file.
            offset: in bytes.
            direct: bypass the page cache if possible, because the file is not read soon.
        """
        return SystemAppendFile(path, offset, direct=direct)

    def open_new(self, path: str) -> WriteBehindFile:
        """Create a write-behind file that bypasses the page cache; see `write_behind.py`."""
        return WriteBehindFile(SystemAppendFile(path, 0, direct=True))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; fewer than requested at its end.

        Args:
            path: path of the file.
            offset: in bytes.
            length: in bytes; None: to the end.
        """
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)

    def map(self, path: str) -> memoryview:
        """Map a file read-only; the map stays valid after the file is removed."""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return memoryview(b"")
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        view = memoryview(mapped)
        guard.add(mapped, view)
        return view

    @property
    def intact(self) -> bool:
        """True if every accessed page of every mapped file of this process could be read."""
        return guard.intact

    def unreadable_offset(self, mapped: memoryview) -> int | None:
        """Return the offset of a page that is beyond the file's end or cannot be read; None: none."""
        return guard.unreadable_offset(mapped)

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file atomically and durably."""
        beside = path + UNFINISHED
        self.write_new(beside, [data])
        os.replace(beside, path)
        self.sync_dir(os.path.dirname(path))

    def write_new(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write a new file and sync it."""
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
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory tree."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(path)

    def make_dir(self, path: str) -> None:
        """Create a directory and its parents, each synced into its parent."""
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
        """Return the sorted names in a directory; empty if it does not exist."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        """Return whether a file or directory exists."""
        return os.path.exists(path)

    def size(self, path: str) -> int:
        """Return the size of a file in bytes."""
        return os.stat(path).st_size

    def free_bytes(self, path: str) -> int:
        """Return the free space for an unprivileged process, in bytes."""
        stat = os.statvfs(path)
        return stat.f_bavail * stat.f_frsize

    def lock(self, path: str) -> bool:
        """Take a flock, which the kernel releases when this process exits."""
        import fcntl  # POSIX only: a client on another system never locks

        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        self._locks.append(fd)
        return True

    def close(self) -> None:
        """Release the locks. Without it they are held as long as the process lives."""
        for fd in self._locks:
            os.close(fd)
        self._locks.clear()
