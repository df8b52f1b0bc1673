"""A simulated disk: `env.files.Files` with the crash semantics of a power cut, and faults by rate.

A `SimDisk` outlives processes. `mount()` gives the `SimFiles` of an incarnation; `crash()` is a power failure
(unsynced data is lost, torn or kept at random), `kill()` a crash of the process alone.
After either, the old `SimFiles` raises ProcessDied.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from posixpath import normpath

from nyala.wal.segments.format import SEGMENT_MAGIC
from tests.sim.checkers.durable import DurableLog, Kept
from tests.sim.world.inode import Inode
from tests.sim.world.mounted import SimFiles
from tests.sim.world.names import Names, Tree
from tests.sim.world.trace import Trace


@dataclass(slots=True)
class DiskFaults:
    """Rates per operation, 0 to 1, and limits.

    Attributes:
        read_flip_rate: a read or map returns one flipped bit; the disk is unchanged.
        write_flip_rate: a write stores one flipped bit.
        read_eio_rate: a read fails with EIO.
        write_eio_rate: an append fails with EIO, having written a part.
        sync_eio_rate: a sync fails with EIO, and its data is never written.
        capacity_bytes: beyond it, ENOSPC; None: no limit.
        no_room_rate: creation and growth of files fail with ENOSPC; a write has written a part.
    """

    read_flip_rate: float = 0.0
    write_flip_rate: float = 0.0
    read_eio_rate: float = 0.0
    write_eio_rate: float = 0.0
    sync_eio_rate: float = 0.0
    capacity_bytes: int | None = None
    no_room_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Image:
    """Image of a disk: contents by directory and name, and the durable state of each group."""

    tree: dict[str, dict[str, bytes]]
    kept: dict[str, Kept]


class SimDisk:
    """One process's disk.

    Args:
        rng: draws faults and the data that survives a crash.
        trace: notes operations; None for tests that need none.
        name: name of the owner, for the trace.
    """

    def __init__(self, rng: random.Random, trace: Trace | None = None, name: str = "disk") -> None:
        self.rng = rng
        self.trace = trace or Trace()
        self.name = name
        self.faults = DiskFaults()
        self.names = Names()
        self.locks: dict[str, SimFiles] = {}
        self.operations = 0
        self.die_at: int | None = None
        self.die_when: Callable[[str, str], bool] | None = None
        self.on_death: Callable[[], None] | None = None
        self.on_sync: Callable[[], None] | None = None
        self.on_operation: Callable[[str, str], None] | None = None
        self.lost_data = False  # it had damage or errors, so that its reader may fail
        self._doubt = 0  # see `doubtful`
        self.syncs = 0
        self.durable = DurableLog(self.names)
        self._mounted: SimFiles | None = None

    @property
    def doubtful(self) -> bool:
        """True if the log's end has a flipped bit, and no later record proves yet that it was durable.

        No log can distinguish that from the torn tail of a crash, so crashes wait.
        """
        return self._doubt > 0

    def note_flip(self, path: str) -> None:
        """A write to the log has stored a wrong bit."""
        if "/wal/" in path:
            self._doubt = 1

    def note_append(self, path: str, data: bytes) -> None:
        """A write to the log was correct."""
        if self._doubt == 2 and "/wal/" in path and not data.startswith(SEGMENT_MAGIC):
            self._doubt = 3

    def note_sync(self, path: str) -> None:
        """A sync has returned."""
        if self._doubt and "/wal/" in path:
            self._doubt = {1: 2, 2: 2, 3: 0}[self._doubt]
        if self.on_sync is not None:
            self.on_sync()

    def touched(self, kind: str, path: str) -> None:
        """An operation that takes time on a real disk begins."""
        if self.on_operation is not None:
            self.on_operation(kind, path)

    def mount(self) -> "SimFiles":
        """Return the files for a new incarnation of the process."""
        if self._mounted is not None:
            self._mounted.alive = False
        self._mounted = SimFiles(self)
        return self._mounted

    def die_after(self, operations: int) -> None:
        """Crash the process in the n-th changing operation from now on (1: the next one)."""
        self.die_at = self.operations + operations

    def kill(self) -> None:
        """The process crashed (kill -9); the kernel keeps all written data."""
        self.die_at = self.die_when = None
        self.locks.clear()
        if self._mounted is not None:
            self._mounted.alive = False

    def crash(self) -> None:
        """Cut the power: unsynced contents and names survive at random."""
        self.kill()
        inodes: dict[int, tuple[str, Inode]] = {}
        for directory in sorted(self.names.seen):
            for name, inode in sorted(self.names.seen[directory].items()):
                inodes.setdefault(id(inode), (f"{directory}/{name}", inode))
        undone = self.names.crash(self.rng)
        if undone:
            self.trace.note("names_undone", f"{self.name} {undone}")
        for path, inode in inodes.values():
            how = inode.crash(self.rng)
            if how != "synced":
                self.trace.note(f"crash_keeps_{how}", f"{self.name} {path}")
        for names in self.names.seen.values():
            for inode in names.values():
                if inode.changes:  # a removed name exists again
                    inode.crash(self.rng)
        self.durable.crashed()

    def image(self) -> Image:
        """Return the present image of the disk."""
        tree = {
            directory: {name: bytes(inode.content) for name, inode in names.items()}
            for directory, names in self.names.seen.items()
        }
        return Image(tree, self.durable.image())

    def put_back(self, image: Image) -> None:
        """Restore an image of this disk while no process uses it."""
        tree: Tree = {}
        for directory, names in image.tree.items():
            tree[directory] = {name: Inode() for name in names}
            for name, content in names.items():
                tree[directory][name].content += content
        self.names.put_back(tree)
        files = {f"{d}/{n}": inode for d, names in tree.items() for n, inode in names.items()}
        self.durable.put_back(image.kept, files)
        self._doubt = 0

    def used_bytes(self) -> int:
        """Bytes in files."""
        return sum(len(i.content) for names in self.names.seen.values() for i in names.values())

    def flip_bit(self, path: str, offset: int) -> None:
        """Flip one bit of a stored byte."""
        inode = self.names.get(normpath(path))
        assert inode is not None, f"no file {path}"
        self.lost_data = True
        inode.content[offset] ^= 1 << self.rng.randrange(8)
        self.trace.note("bit_rot", f"{self.name} {path} {offset}")
