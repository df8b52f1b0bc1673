"""Support of the log's tests: entries, a machine that crashes and restarts, files that note calls or fail."""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from nyala.common.errors import Corrupt
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.files import AppendFile, Files
from nyala.env.tasks import LoopTasks, Tasks
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.wal.append.slots import Slot
from nyala.wal.log import Wal
from nyala.wal.recovery.recovered import RecoveredGroup
from tests.sim.world.files import SimDisk
from tests.sim.world.inode import Inode
from tests.sim.world.loop import Incarnation, ProcessDied, SimLoop
from tests.sim.world.tasks import SimClock, SimTasks

UUID = ServerUuid("ab" * 16)
A, B, C = (TabletId(f"{n:032x}") for n in (1, 2, 3))


@dataclass(frozen=True)
class Found:
    """Content of an opened log for a group, entries read back."""

    entries: list[Entry]
    hard_state: HardState | None
    corrupt: Corrupt | None
    own: RecoveredGroup


Recovered = dict[TabletId, Found]


def entry(index: int, payload: bytes | None = None, term: int = 1) -> Entry:
    data = b"%d/%d" % (term, index) if payload is None else payload
    return Entry(OpId(term, index), 1000 * term + index, EntryKind.OPERATION, data)


def entries(first: int, last: int, term: int = 1) -> list[Entry]:
    return [entry(i, term=term) for i in range(first, last + 1)]


def vote(term: int, uuid: str | None = None) -> HardState:
    return HardState(term, None if uuid is None else ServerUuid(uuid))


async def open_wal(
    files: Files, tasks: Tasks, *, segment_bytes: int = 1 << 14, queue_bytes: int = 1 << 20,
    sync: bool = True, directory: str = "/d", clock: Any = None, uuid: str = UUID, **more: Any,
) -> tuple[Wal, Recovered]:  # fmt: skip
    wal, groups = await Wal.open(
        files, tasks, directory, server_uuid=uuid, segment_bytes=segment_bytes,
        queue_bytes=queue_bytes, sync=sync, clock=clock, **more,
    )  # fmt: skip
    found = {}
    for group, own in groups.items():
        read = await wal.read(group, own.first, 1 << 40)
        assert [e.id for e in read[-1:]] == [own.last] * bool(own.last.index)
        assert {e.id.term for e in read} == {op.term for op in own.starts}
        found[group] = Found(read, own.hard_state, own.corrupt, own)
    return wal, found


def hand_in(wal: Wal, slot: Slot) -> "asyncio.Future[OSError | None]":
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    wal.append_async(slot, done.set_result)
    return done


def append(
    wal: Wal, group: TabletId, new: Sequence[Entry], hard_state: HardState | None = None
) -> "asyncio.Future[OSError | None]":
    return hand_in(wal, wal.reserve(group, new, hard_state))


async def durable(
    wal: Wal, group: TabletId, new: Sequence[Entry], hard_state: HardState | None = None
) -> None:
    assert await append(wal, group, new, hard_state) is None


async def collected(wal: Wal) -> int:
    """Collect; return the number of segments removed."""
    removed = await wal.collect()
    assert isinstance(removed, int)
    return removed


def noted(order: list[Any], number: int) -> Callable[[OSError | None], None]:
    """A callback that notes its number and the error."""

    def note(err: OSError | None) -> None:
        order.append((number, err))

    return note


class Machine:
    """A disk and the incarnations of one process on it. `live` returns False if it crashed in the middle."""

    def __init__(self, loop: SimLoop, seed: int = 1) -> None:
        self.loop = loop
        self.disk = SimDisk(random.Random(seed))
        self.rng = random.Random(seed + 1)
        self.clock = SimClock(loop)

    def files(self) -> Any:
        return self.disk.mount()

    def put(self, path: str, data: bytes) -> None:
        """Make these the durable bytes of a file, as if from a time before this test."""
        inode = Inode()
        inode.content += data
        directory = path.rpartition("/")[0]
        self.disk.names.make_dir(directory)
        self.disk.names.link(path, inode)
        self.disk.names.sync(directory)

    def tasks(self) -> SimTasks:
        return SimTasks(self.loop, self.rng)

    async def live(self, work: Callable[[Files, Tasks], Coroutine[Any, Any, object]]) -> bool:
        incarnation, outside = Incarnation("server"), contextvars.copy_context()
        over: asyncio.Future[bool] = self.loop.create_future()

        def end(finished: bool) -> None:
            if not over.done():
                over.set_result(finished)

        self.disk.on_death = lambda: self.loop.call_soon(end, False, context=outside)  # type: ignore[assignment]
        tasks = SimTasks(self.loop, self.rng)
        task = incarnation.inside(self.loop.create_task, work(self.disk.mount(), tasks))
        task.add_done_callback(lambda _: end(True), context=outside)
        finished = await over
        if task.done() and task.exception() is not None:
            if not isinstance(task.exception(), ProcessDied):
                task.result()
            finished = False
        incarnation.end()
        assert not incarnation.failures, incarnation.failures
        return finished

    def open(self, **options: Any) -> Coroutine[Any, Any, tuple[Wal, Recovered]]:
        return open_wal(self.disk.mount(), self.tasks(), **options)


class SpyFiles:
    """Files that record each changing call, and raise the error that `fail(call, path)` returns."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self.calls: list[tuple[Any, ...]] = []
        self.fail: Callable[[str, str], OSError | None] = lambda call, path: None

    def note(self, call: str, path: str, *details: Any) -> None:
        self.calls.append((call, path.rpartition("/")[2], *details))
        if (err := self.fail(call, path)) is not None:
            raise err

    def open_append(self, path: str, offset: int = 0, *, direct: bool = False) -> AppendFile:
        return SpyAppendFile(self, path, self._files.open_append(path, offset))

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._files, name)
        if name not in ("rename", "remove", "sync_dir", "read", "write_atomic"):
            return method

        def noted(path: str, *args: Any, **kwargs: Any) -> Any:
            self.note(name, path, *args)
            return method(path, *args, **kwargs)

        return noted

    def count(self, call: str) -> int:
        return sum(c[0] == call for c in self.calls)


class SpyAppendFile:
    def __init__(self, spy: SpyFiles, path: str, file: AppendFile) -> None:
        self._spy, self._path, self._file = spy, path, file

    def append(self, buffers: Sequence[Any]) -> int:
        self._spy.note("append", self._path, sum(map(len, buffers)))
        return self._file.append(buffers)

    def sync(self, *, data_only: bool) -> None:
        self._spy.note("sync", self._path, data_only)
        self._file.sync(data_only=data_only)

    def release(self) -> None:
        self._spy.note("release", self._path)
        self._file.release()

    def preallocate(self, length_bytes: int) -> None:
        self._spy.note("preallocate", self._path, length_bytes)
        self._file.preallocate(length_bytes)

    def truncate(self, length_bytes: int) -> None:
        self._spy.note("truncate", self._path, length_bytes)
        self._file.truncate(length_bytes)

    def close(self) -> None:
        self._file.close()


class HeldTasks(LoopTasks):
    """Real tasks whose jobs of one lane wait until they are released."""

    def __init__(self) -> None:
        super().__init__()
        self.held: Any = None
        self.gate = asyncio.Event()

    async def run(self, lane: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
        if lane is self.held:
            await self.gate.wait()
        return await super().run(lane, fn, *args, **kwargs)


def ids(recovered: Recovered, group: TabletId) -> list[tuple[int, int]]:
    """(term, index) of a group's recovered entries."""
    own = recovered.get(group)
    return [] if own is None else [(e.id.term, e.id.index) for e in own.entries]


def indices(recovered: Recovered, group: TabletId) -> list[int]:
    return [index for _, index in ids(recovered, group)]
