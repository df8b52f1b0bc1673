"""A journal on a simulated disk, with the group's log that a replica would replay."""

import random

from nyala.common.ids import CommittedOperation, OpId, TableId, TabletId
from nyala.journal import steps
from nyala.journal.journal import JournalMachine
from nyala.journal.manifest import JournalInfo
from nyala.storage.flush_point import StoredFlushPoint
from tests.sim.world.files import SimDisk

DIRECTORY = "data/j"
INFO = JournalInfo(TabletId("f" * 32), TableId("e" * 32), "ops", 1, 1 << 30)


class JournalOnDisk:
    """One journal, and every operation that it has applied."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.files = disk.mount()
        self.journal = JournalMachine.create(self.files, DIRECTORY, INFO)
        self.log: list[CommittedOperation] = []

    @property
    def last_stamp(self) -> int:
        """Stamp of the last operation."""
        return 100 + 10 * len(self.log)

    def apply(self, *changes: steps.Change) -> tuple[int, ...]:
        """Apply one step; return the ids of its changes."""
        payload = steps.encode_step(steps.Step((), changes))
        self.log.append(
            CommittedOperation(OpId(1, len(self.log) + 1), self.last_stamp + 10, payload)
        )
        (result,) = self.journal.apply(self.log[-1:])
        done = steps.decode_result(result)
        assert isinstance(done, steps.Done)
        return tuple(done.ids)

    def flush_point(self) -> StoredFlushPoint:
        """The flush point as of now."""
        return StoredFlushPoint(self.log[-1].id, self.log[-1].stamp, b"sessions")

    def flush(self) -> bool:
        """Flush; return whether there was anything to flush."""
        build = self.journal.prepare_flush(self.flush_point())
        if build is not None:
            build()()
        return build is not None

    def merge(self) -> bool:
        """Merge all files."""
        build = self.journal.prepare_compaction(force=True)
        if build is not None:
            build()()
        return build is not None

    def reopen(self) -> None:
        """Open the files as a new process does, and replay the log after their flush point."""
        self.files = self.disk.mount()
        self.journal = JournalMachine.open(self.files, DIRECTORY)
        self.journal.apply(self.log[self.journal.flush_point.op.index :])

    def content(self) -> tuple[object, ...]:
        """Return everything that can be read."""
        state = self.journal.state
        logs = [
            (g.name, g.created, g.last, list(g.entries.read(0, g.last))) for g in state.by_name()
        ]
        keys = [(k.key, k.version, k.value) for k in state.keys.starting_with("")]
        return logs, keys, state.last, state.items, state.digest, state.size_bytes


def prepared(seed: int) -> JournalOnDisk:
    """Return a journal with two data files and unflushed changes of every kind."""
    one = JournalOnDisk(SimDisk(random.Random(seed)))
    a, b = one.apply(steps.Append("a", b"1"), steps.Append("a", b"2"))
    one.apply(steps.Append("gone", b"x"), steps.SetKey("k", b"v"), steps.SetKey("old", b"w"))
    one.flush()
    one.apply(steps.Append("a", b"3", (a,)), steps.Append("b", b"4" * 100))
    one.apply(steps.DeleteLog("gone"), steps.DeleteKey("old"))
    one.flush()
    one.apply(steps.Invalidate("a", (b,)), steps.SetKey("k", b"new"))
    one.apply(steps.Append("gone", b"again"), steps.DeleteLog("b"))
    return one
