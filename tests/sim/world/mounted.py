"""A simulated disk mounted by one incarnation of a process: `env.files.Files`, until it ends."""

import errno
import os
import random
from collections.abc import Sequence
from posixpath import normpath
from typing import TYPE_CHECKING
from zlib import crc32

from nyala.env.files import UNFINISHED, Buffer
from tests.sim.world.inode import Inode
from tests.sim.world.loop import ProcessDied

if TYPE_CHECKING:
    from tests.sim.world.files import SimDisk


class SimFiles:
    """`env.files.Files` of one incarnation."""

    def __init__(self, disk: "SimDisk") -> None:
        self.disk = disk
        self.alive = True

    def _changing(self, kind: str, path: str, detail: object = "") -> bool:
        """Count a changing operation; return whether the process crashes in it."""
        self._check()
        disk = self.disk
        disk.touched(kind, path)
        disk.operations += 1
        disk.trace.note(kind, f"{disk.name} {path} {detail}")
        if disk.doubtful:
            return False
        if disk.die_when is not None and disk.die_when(kind, path):
            return True
        return disk.die_at is not None and disk.operations >= disk.die_at

    def _check(self) -> None:
        if not self.alive:
            raise ProcessDied(f"{self.disk.name} has ended")

    def _die(self) -> None:
        self.disk.trace.note("death_in_file_operation", self.disk.name)
        self.alive = False
        self.disk.die_at = self.disk.die_when = None
        if self.disk.on_death is not None:
            self.disk.on_death()
        raise ProcessDied(f"{self.disk.name} crashes in file operation {self.disk.operations}")

    def _inode(self, path: str) -> Inode:
        inode = self.disk.names.get(normpath(path))
        if inode is None:
            kind = errno.EISDIR if normpath(path) in self.disk.names.seen else errno.ENOENT
            raise OSError(kind, os.strerror(kind), path)
        return inode

    def _hit(self, rate: float, kind: str, path: str) -> bool:
        if rate and self.disk.rng.random() < rate:
            self.disk.trace.note(kind, f"{self.disk.name} {path}")
            self.disk.lost_data = True
            return True
        return False

    def _room(self, path: str) -> None:
        """Refuse further space at random."""
        disk = self.disk
        if disk.faults.no_room_rate and disk.rng.random() < disk.faults.no_room_rate:
            disk.trace.note("no_room", f"{disk.name} {path}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def _write(self, path: str, inode: Inode, offset: int, data: bytes, *, dies: bool) -> None:
        disk = self.disk
        grown = max(0, offset + len(data) - len(inode.content))
        if grown:
            try:
                self._room(path)
            except OSError:
                self._put(path, inode, offset, data[: disk.rng.randrange(len(data) + 1)])
                raise
        if disk.faults.capacity_bytes is not None and grown:
            free = disk.faults.capacity_bytes - disk.used_bytes()
            if grown > free:
                disk.trace.note("enospc", f"{disk.name} {path}")
                self._put(path, inode, offset, data[: max(0, len(data) - (grown - max(0, free)))])
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        if data and self._hit(disk.faults.write_flip_rate, "write_flip", path):
            disk.durable.wrote(path, inode, offset, data)
            inode.write(offset, _flipped(data, disk.rng))
            disk.note_flip(path)
            return
        if dies:
            data = data[: disk.rng.randrange(len(data) + 1)]
        elif self._hit(disk.faults.write_eio_rate, "write_eio", path):
            self._put(path, inode, offset, data[: disk.rng.randrange(len(data) + 1)])
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        self._put(path, inode, offset, data)

    def _put(self, path: str, inode: Inode, offset: int, data: bytes) -> None:
        inode.write(offset, data)
        self.disk.durable.wrote(path, inode, offset, data)
        self.disk.note_append(path, data)

    def _sync(self, path: str, inode: Inode, *, dies: bool) -> None:
        self.disk.syncs += 1
        if dies and self.disk.rng.random() < 0.5:
            return
        if self._hit(self.disk.faults.sync_eio_rate, "sync_eio", path):
            inode.fail_sync()
            self.disk.durable.sync_failed(inode)
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        inode.sync()
        self.disk.durable.synced(inode)
        self.disk.note_sync(path)

    def _before(self) -> bool:
        """Return whether a crash in a name operation comes before its effect."""
        return self.disk.rng.random() < 0.5

    def open_append(self, path: str, offset: int = 0, *, direct: bool = False) -> "SimAppendFile":
        """Open (create if missing) for appending from `offset` on."""
        self._check()
        clean = normpath(path)
        inode = self.disk.names.get(clean)
        if inode is None:
            inode = self._create(clean)
        return SimAppendFile(self, clean, inode, offset)

    def open_new(self, path: str) -> "SimAppendFile":
        """Make a file that is written once."""
        return self.open_append(path)

    def _create(self, path: str) -> Inode:
        dies = self._changing("create", path)
        self._room(path)
        directory = path.rpartition("/")[0] or ("/" if path.startswith("/") else "")
        if directory not in self.disk.names.seen:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if path in self.disk.names.seen:
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        inode = Inode()
        if not (dies and self._before()):
            self.disk.names.link(path, inode)
        if dies:
            self._die()
        return inode

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; fewer than requested at its end."""
        self._check()
        self.disk.touched("read", path)
        content = self._inode(path).content
        end = len(content) if length is None else offset + length
        if self._hit(self.disk.faults.read_eio_rate, "read_eio", path):
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        data = bytes(memoryview(content)[offset:end])
        if data and self._hit(self.disk.faults.read_flip_rate, "read_flip", path):
            data = _flipped(data, self.disk.rng)
        return data

    def map(self, path: str) -> memoryview:
        """Return a snapshot of a whole file; it stays valid after changes of the file."""
        return memoryview(self.read(path))

    intact = True

    def unreadable_offset(self, mapped: memoryview) -> int | None:
        """Return None: a snapshot is never truncated."""
        return None

    def write_atomic(self, path: str, data: Buffer) -> None:
        """Replace a file durably: each step may be the last."""
        beside = path + UNFINISHED
        self.write_new(beside, [data])
        self.rename(beside, path)
        self.sync_dir(normpath(path).rpartition("/")[0])

    def write_new(self, path: str, buffers: Sequence[Buffer]) -> None:
        """Write a whole new file and sync it. Its name is durable only after `sync_dir`."""
        clean = normpath(path)
        inode = self.disk.names.get(clean) or self._create(clean)
        data = b"".join(bytes(b) for b in buffers)
        dies = self._changing("write_new", clean, f"{len(data)} {crc32(data):08x}")
        inode.resize(0)
        self._write(clean, inode, 0, data, dies=dies)
        if dies:
            self._die()
        dies = self._changing("sync", clean)
        self._sync(clean, inode, dies=dies)
        if dies:
            self._die()

    def rename(self, source: str, target: str) -> None:
        """Rename; durable only after `sync_dir` of the target's directory."""
        old, new = normpath(source), normpath(target)
        dies = self._changing("rename", old, new)
        if not (dies and self._before()):
            if old in self.disk.names.seen:
                self.disk.names.rename_dir(old, new)
            else:
                self._inode(source)
                self.disk.names.rename(old, new)
        if dies:
            self._die()

    def remove(self, path: str) -> None:
        """Remove a file; no error if it is not there."""
        self._check()
        clean = normpath(path)
        if self.disk.names.get(clean) is None:
            return
        dies = self._changing("remove", clean)
        if not (dies and self._before()):
            self.disk.names.unlink(clean)
        if dies:
            self._die()

    def remove_tree(self, path: str) -> None:
        """Remove a directory and all in it; no error if it is not there."""
        self._check()
        clean = normpath(path)
        if clean not in self.disk.names.seen:
            return
        dies = self._changing("remove_tree", clean)
        if not (dies and self._before()):
            self.disk.names.drop(clean)
        if dies:
            self._die()

    def make_dir(self, path: str) -> None:
        """Make a directory and its parents; no error if it is there. Synced into its parent."""
        self._check()
        clean = normpath(path)
        if clean in self.disk.names.seen:
            return
        dies = self._changing("make_dir", clean)
        if not (dies and self._before()):
            self.disk.names.make_dir(clean)
        if dies:
            self._die()

    def sync_dir(self, path: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        clean = normpath(path) if path else ""
        dies = self._changing("sync_dir", clean)
        if clean not in self.disk.names.seen:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if not (dies and self._before()):
            self.disk.names.sync(clean)
            self.disk.durable.named()
        if dies:
            self._die()

    def list(self, path: str) -> list[str]:
        """Return the sorted names in a directory; empty if it is not there."""
        self._check()
        self.disk.touched("list", path)
        clean = normpath(path) if path else ""
        inner = clean.rstrip("/") + "/" if clean else ""
        children = {
            d[len(inner) :]
            for d in self.disk.names.seen
            if d not in ("", "/") and d.startswith(inner) and "/" not in d[len(inner) :]
        }
        return sorted(children | set(self.disk.names.seen.get(clean, {})))

    def exists(self, path: str) -> bool:
        """Return whether a file or directory is there."""
        self._check()
        self.disk.touched("exists", path)
        clean = normpath(path)
        return clean in self.disk.names.seen or self.disk.names.get(clean) is not None

    def size(self, path: str) -> int:
        """Length of a file in bytes."""
        self._check()
        self.disk.touched("size", path)
        return len(self._inode(path).content)

    def free_bytes(self, path: str) -> int:
        """Free space; a terabyte where no limit is set."""
        self._check()
        self.disk.touched("statvfs", path)
        limit = self.disk.faults.capacity_bytes
        return 1 << 40 if limit is None else max(0, limit - self.disk.used_bytes())

    def lock(self, path: str) -> bool:
        """Take an exclusive lock for this incarnation; False if another running one has it."""
        self._check()
        clean = normpath(path)
        holder = self.disk.locks.get(clean)
        if holder is not None and holder.alive:
            return False
        if self.disk.names.get(clean) is None:
            self._create(clean)
        self.disk.locks[clean] = self
        return True


class SimAppendFile:
    """A simulated file open for appending."""

    def __init__(self, files: SimFiles, path: str, inode: Inode, offset: int) -> None:
        self._files = files
        self._path = path
        self._inode = inode
        self._end = offset
        self._open = True

    def append(self, buffers: Sequence[Buffer]) -> int:
        """Append the buffers; return the new end offset."""
        assert self._open, f"{self._path} is closed"
        data = b"".join(bytes(b) for b in buffers)
        dies = self._files._changing(
            "append", self._path, f"{self._end}+{len(data)} {crc32(data):08x}"
        )
        self._files._write(self._path, self._inode, self._end, data, dies=dies)
        if dies:
            self._files._die()
        self._end += len(data)
        return self._end

    def sync(self, *, data_only: bool) -> None:
        """Make everything appended durable."""
        assert self._open, f"{self._path} is closed"
        dies = self._files._changing("sync", self._path)
        self._files._sync(self._path, self._inode, dies=dies)
        if dies:
            self._files._die()

    def release(self) -> None:
        """Do nothing: a simulated disk has no page cache."""
        assert self._open, f"{self._path} is closed"

    def preallocate(self, length_bytes: int) -> None:
        """Reserve space; the reserved part reads as zeros."""
        dies = self._files._changing("preallocate", self._path, length_bytes)
        disk = self._files.disk
        grown = length_bytes - len(self._inode.content)
        limit = disk.faults.capacity_bytes
        if grown > 0:
            self._files._room(self._path)
        if limit is not None and grown > limit - disk.used_bytes():
            disk.trace.note("enospc", f"{disk.name} {self._path}")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)
        if grown > 0:
            self._inode.resize(length_bytes)
        if dies:
            self._files._die()

    def truncate(self, length_bytes: int) -> None:
        """Truncate or extend; the next append goes to the end."""
        dies = self._files._changing("truncate", self._path, length_bytes)
        self._inode.resize(length_bytes)
        self._files.disk.durable.cut(self._inode, length_bytes)
        self._end = length_bytes
        if dies:
            self._files._die()

    def close(self) -> None:
        """Close without syncing."""
        self._open = False


def _flipped(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)
