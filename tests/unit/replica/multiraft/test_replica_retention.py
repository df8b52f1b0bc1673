"""Retention of the log for peers: the groups with the most entries release them, and no more than needed."""

import asyncio
from types import SimpleNamespace
from typing import Any

from nyala.common.ids import TabletId
from nyala.common.options import MIB, Options
from nyala.replica.member.flusher import Flusher
from nyala.replica.multiraft.retention import Retention

A, B, C = (TabletId(letter * 32) for letter in "abc")


class FakeLog:
    """A log over its size, with the bytes kept for peers."""

    def __init__(self, held: dict[TabletId, int]) -> None:
        self.held = held
        self.unreadable: dict[TabletId, Exception] = {}
        self.collections: list[int] = []

    def stats(self) -> Any:
        return SimpleNamespace(segments=100, pinned_by=())

    def held_bytes(self) -> dict[TabletId, int]:
        return self.held

    def collect(self, keep: int) -> None:
        self.collections.append(keep)


def let_go_of(held: dict[TabletId, int], limit_mb: int) -> list[TabletId]:
    """Return the groups that release entries, in their order."""
    released: list[TabletId] = []

    def replica(group: TabletId) -> Any:
        return SimpleNamespace(member=SimpleNamespace(release_log=lambda: released.append(group)))

    log = FakeLog(held)
    options = Options(wal_retain_for_peers_mb=limit_mb, wal_retain_mb=64, wal_segment_mb=64)
    context: Any = SimpleNamespace(wal=log, options=options)
    Retention(context, {g: replica(g) for g in held}).collect()
    assert log.collections == [2]
    return released


def test_largest_group_releases_log_first_and_others_keep_theirs_within_limit():
    held = {A: 100 * MIB, B: 500 * MIB, C: 150 * MIB}
    assert let_go_of(held, 750) == []
    assert let_go_of(held, 749) == [B]
    assert let_go_of(held, 249) == [B, C]
    assert let_go_of(held, 99) == [B, C, A]


class FailedReplica:
    """A replica that has failed, or fails on the test's command."""

    def __init__(self, group: TabletId, *, failed: bool) -> None:
        self.group = group
        self.error: Exception | None = OSError("the disk failed") if failed else None

    @property
    def member(self) -> Any:
        return None if self.error else SimpleNamespace(release_log=None)

    def fail(self, error: Exception) -> None:
        self.error = error


class GivingUp:
    """Retention over replicas that failed, with a disk that refuses some first superblocks."""

    def __init__(self, log: FakeLog, replicas: dict[TabletId, Any], refusals: int = 0) -> None:
        self.log, self.released, self._refusals = log, list[TabletId](), refusals
        self._tasks: list[asyncio.Task[None]] = []
        log.release = self.released.append  # type: ignore[attr-defined]
        tasks = SimpleNamespace(run=self._run, spawn=self._spawn)
        options = Options(wal_retain_for_peers_mb=100, wal_retain_mb=64, wal_segment_mb=64)
        superblocks = SimpleNamespace(load=None, save=None)
        context: Any = SimpleNamespace(
            wal=log, options=options, superblocks=superblocks, env=SimpleNamespace(tasks=tasks)
        )
        self._retention = Retention(context, replicas)

    def _spawn(self, work: Any, name: str) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    async def _run(self, *call: Any) -> None:
        self._refusals -= 1
        if self._refusals >= 0:
            raise OSError("no space left")

    def collect(self) -> None:
        """Collect, and wait for the started moves."""
        asyncio.run(self._collect())

    async def _collect(self) -> None:
        self._retention.collect()
        await asyncio.gather(*self._tasks)
        self._tasks.clear()


def test_group_with_unreadable_entries_is_abandoned_at_limit():
    log = FakeLog({A: 10 * MIB, B: 20 * MIB})
    log.unreadable = {A: OSError("damaged")}
    readable, damaged = FailedReplica(B, failed=True), FailedReplica(A, failed=False)
    process = GivingUp(log, {A: damaged, B: readable})
    process.collect()
    assert str(damaged.error) == "damaged"
    assert process.released == [A]


def test_failed_abandonment_is_retried():
    process = GivingUp(FakeLog({A: 200 * MIB}), {A: FailedReplica(A, failed=True)}, refusals=1)
    process.collect()
    assert process.released == []
    process.collect()
    assert process.released == [A]


def test_leader_keeps_entries_for_less_lagging_members_and_predecessor():
    anchors: list[tuple[int, int | None]] = []
    flush_point = SimpleNamespace(op=SimpleNamespace(index=100))
    view = SimpleNamespace(retain_index=10, keeps_log=False)
    node: Any = SimpleNamespace(view=view, is_leader=True, left=[])

    def mark_for_copy(index: int) -> None:
        node.left.append(index)
        view.retain_index = 40  # the next one's

    node.mark_for_copy = mark_for_copy
    applier: Any = SimpleNamespace(
        machine=SimpleNamespace(flush_point=flush_point), applied=SimpleNamespace(index=100)
    )
    wal = SimpleNamespace(
        set_anchor=lambda group, first, own, movable: anchors.append((first, own))
    )
    context: Any = SimpleNamespace(wal=wal)
    flusher = Flusher(context, A, node, applier, lambda err: None)
    flusher.anchor()
    flusher.release_log()
    flusher.anchor()
    node.is_leader = False
    flusher.release_log()
    flusher.anchor()
    assert node.left == [101, 101]
    assert anchors == [(9, 101), (39, 101), (101, 101)]
