"""Entries moved to the log's end: never lost, and never restored after replacement."""

import tracemalloc
from typing import Any

import pytest

from nyala.common.errors import LogGap
from nyala.common.ids import OpId
from nyala.env.tasks import Lane
from nyala.raft.messages import EntryKind
from nyala.wal import collect
from nyala.wal.index import EntryLocation, LogIndex
from nyala.wal.recovery.opening import recover
from nyala.wal.recovery.recovered import Recovery
from nyala.wal.segments.format import BEGINS, TAIL, LogPosition, Record, RecordKind, group_bytes
from nyala.wal.segments.segment import Segment
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import damage, fill
from tests.unit.wal.support.wal_harness import (
    UUID,
    A,
    B,
    Machine,
    append,
    collected,
    durable,
    entries,
    entry,
    ids,
    indices,
)


class Log:
    """Replays records in their order, each in the given segment."""

    def __init__(self) -> None:
        self.recovery = Recovery()
        self.offset = 0

    def put(
        self, kind, index, term=1, *, segment=1, rest=0, flags=0, entry_kind=EntryKind.OPERATION
    ):
        self.offset += 100
        record = Record(
            kind, group_bytes(A), term, index, 1000 * term + index, entry_kind, self.offset, 100,
            LogPosition(0, 0), b"", rest, flags,
        )  # fmt: skip
        self.recovery.replay(Segment(segment, f"{segment}.wal"), record)

    def entries(self, first, last, term=1, segment=1):
        for index in range(first, last + 1):
            self.put(RecordKind.ENTRY, index, term, segment=segment)

    def moved(self, first, last, term=1, segment=9, *, tail=True, cut=0):
        """A run; without its first records if `cut` is positive, without its last if it is negative."""
        for index in range(first, last + 1):
            flags = BEGINS | TAIL * tail if index == first else 0
            if first + cut <= index <= last + min(0, cut):
                self.put(
                    RecordKind.MOVED, index, term, segment=segment, rest=last - index, flags=flags
                )

    def held(self):
        self.recovery.finish()
        own = self.recovery.groups[A]
        assert own.corrupt is None, own.corrupt
        bounds = self.recovery.index.bounds(A)
        if bounds is None:
            return []
        places = self.recovery.index.locate(A, bounds[0], 1 << 40)
        return [(p.term, p.index, p.sequence) for p in places]


def test_moved_run_with_existing_originals_only_adds_location():
    log = Log()
    log.entries(3, 5)
    log.moved(3, 5)
    assert log.held() == [(1, 3, 9), (1, 4, 9), (1, 5, 9)]


def test_configurations_are_in_the_order_of_the_log_after_a_move_that_a_crash_interrupted():
    log = Log()
    for index in (3, 4):
        log.put(RecordKind.ENTRY, index, entry_kind=EntryKind.CONFIG)
    log.put(RecordKind.MOVED, 3, rest=1, flags=BEGINS | TAIL, entry_kind=EntryKind.CONFIG)
    log.recovery.finish()
    assert [config.id.index for config in log.recovery.groups[A].configs] == [3, 4]


def test_moved_run_is_start_of_group_after_originals_are_collected():
    log = Log()
    log.moved(3, 5)
    log.entries(6, 7, segment=9)
    assert log.held() == [(1, n, 9) for n in range(3, 8)]


def test_moved_run_is_joined_with_entries_appended_meanwhile():
    log = Log()
    log.put(RecordKind.MOVED, 3, segment=8, rest=1, flags=BEGINS | TAIL)
    log.entries(5, 6, segment=8)
    log.put(RecordKind.MOVED, 4, segment=9)
    assert log.held() == [(1, 3, 8), (1, 4, 9), (1, 5, 8), (1, 6, 8)]


@pytest.mark.parametrize("cut", [1, -1])
def test_moved_run_without_start_or_end_is_ignored(cut):
    log = Log()
    log.moved(3, 5, cut=cut)
    assert log.held() == []
    log.entries(9, 9, segment=9)
    assert log.held() == [(1, 9, 9)]


def test_moved_run_without_start_is_joined_to_later_entries():
    """Its first segment was collected when its first entries were not needed any more; the rest may be."""
    log = Log()
    log.entries(6, 7)
    log.moved(3, 5, cut=1)
    assert log.held() == [(1, 4, 9), (1, 5, 9), (1, 6, 1), (1, 7, 1)]


def test_rest_of_moved_run_after_forgotten_group_is_ignored():
    log = Log()
    log.put(RecordKind.FORGET, 0, segment=8)
    log.entries(6, 7)
    log.moved(3, 5, cut=1)
    assert log.held() == [(1, 6, 1), (1, 7, 1)]


def test_incomplete_moved_run_leaves_locations_unchanged():
    """The next collection moves its entries again, and keeps the originals until then."""
    log = Log()
    log.entries(3, 5)
    log.moved(3, 5, cut=-1)
    assert log.held() == [(1, 3, 1), (1, 4, 1), (1, 5, 1)]


def test_moved_run_ending_before_existing_entries_is_not_joined():
    log = Log()
    log.entries(8, 9)
    log.moved(3, 5)
    assert log.held() == [(1, 8, 1), (1, 9, 1)]


def test_moved_run_with_gap_is_ignored():
    log = Log()
    log.put(RecordKind.MOVED, 3, segment=8, rest=2, flags=BEGINS | TAIL)
    log.put(RecordKind.MOVED, 5, segment=8)
    assert log.held() == []


def test_moved_run_followed_by_others_is_ignored_alone():
    """The entries after it were collected, and are needed no more; nor is the run."""
    log = Log()
    log.moved(3, 5, tail=False)
    assert log.held() == []


def test_moved_entry_neither_truncates_nor_replaces():
    log = Log()
    log.entries(3, 6)
    log.entries(5, 5, term=2)
    log.moved(3, 6)
    assert log.held() == [(1, 3, 9), (1, 4, 9), (2, 5, 1)]


def test_partly_replaced_moved_run_is_valid_up_to_replacement():
    log = Log()
    log.put(RecordKind.MOVED, 3, segment=8, rest=2, flags=BEGINS | TAIL)
    log.put(RecordKind.ENTRY, 5, term=2, segment=8)
    log.put(RecordKind.MOVED, 4, segment=9, rest=1)
    log.put(RecordKind.MOVED, 5, segment=9)
    assert log.held() == [(1, 3, 8), (1, 4, 9), (2, 5, 8)]


def test_forgotten_entries_within_moved_run_stay_forgotten():
    log = Log()
    log.put(RecordKind.MOVED, 3, segment=8, rest=1, flags=BEGINS | TAIL)
    log.put(RecordKind.FORGET, 0, segment=8)
    log.put(RecordKind.MOVED, 4, segment=8)
    log.entries(1, 1, segment=8)
    assert log.held() == [(1, 1, 8)]


SEGMENT = 2000


async def idle_and_busy(machine, **options):
    """A few needed entries of A, and an active group B without needed entries."""
    wal, _ = await machine.open(segment_bytes=SEGMENT, **options)
    await durable(wal, A, entries(1, 5))
    wal.set_anchor(A, 3, 6, movable=True)
    await fill(wal, B, 1, 100)
    wal.set_anchor(B, 1000)
    return wal


def test_entries_of_idle_group_are_moved_and_segments_collected():
    async def main(loop):
        machine = Machine(loop)
        wal = await idle_and_busy(machine)
        for _ in range(3):
            assert await collected(wal) > 2
            assert wal.stats().segments <= 3
            assert [e.id.index for e in await wal.read(A, 3, 1 << 20)] == [3, 4, 5]
            first = wal.logged(B).last.index + 1
            await fill(wal, B, first, first + 100)
        await durable(wal, A, entries(6, 7))
        machine.disk.crash()
        wal, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A) == [3, 4, 5, 6, 7]
        assert recovered[A].entries[1:3] == entries(4, 5)
        wal.set_anchor(A, 8)
        wal.set_anchor(B, 1000)
        await collected(wal)
        await durable(wal, A, entries(8, 8))

    run(main)


@pytest.mark.parametrize("seed", range(40))
def test_power_failure_at_any_write_of_collection_loses_nothing(seed, monkeypatch):
    """A run is torn at any position; old segments exist or not; the group continues."""
    monkeypatch.setattr(collect, "MOVE_BYTES", 1 + 1000 * (seed % 2))

    async def main(loop):
        machine = Machine(loop, seed)
        wal = await idle_and_busy(machine)
        task = wal.collect()
        await loop.delay(seed * 130)
        machine.disk.crash()
        task.cancel()
        wal, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A)[-3:] == [3, 4, 5]
        await durable(wal, A, entries(6, 8))
        machine.disk.crash()
        _, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A)[-6:] == [3, 4, 5, 6, 7, 8]

    run(main)


@pytest.mark.parametrize("at_once", [True, False], ids=["reserved", "durable"])
def test_entries_being_replaced_are_not_moved(at_once):
    """A new leader's entry arrives while those that it replaces are read."""

    async def main(loop):
        machine: Any = Machine(loop)
        tasks = machine.tasks()
        machine.tasks = lambda: tasks
        wal = await idle_and_busy(machine)
        in_lane, replaced = tasks.run, list[Any]()

        async def read_then_replaced(lane, work, *args, **more):
            found = await in_lane(lane, work, *args, **more)
            if lane is Lane.COMPUTE and not replaced:
                replaced.append(append(wal, A, entries(4, 4, term=2)))
                if not at_once:
                    await replaced[0]
            return found

        tasks.run = read_then_replaced
        assert await collected(wal) == 0
        assert wal.stats().moved == 0
        assert await replaced[0] is None
        assert await collected(wal) > 0
        assert [e.id for e in await wal.read(A, 3, 1 << 20)] == [OpId(1, 3), OpId(2, 4)]
        machine.disk.crash()
        _, recovered = await machine.open(segment_bytes=SEGMENT)
        assert ids(recovered, A)[-2:] == [(1, 3), (2, 4)]

    run(main)


def test_large_needed_entries_are_not_moved_repeatedly():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=SEGMENT)
        await fill(wal, A, 1, 100)
        wal.set_anchor(A, 1, 101, movable=True)
        await fill(wal, B, 1, 100)
        wal.set_anchor(B, 1000)
        assert await collected(wal) == 0
        assert wal.stats().moved == 0
        assert wal.held_bytes()[A] > 5000
        await fill(wal, B, 101, 400)
        assert await collected(wal) > 2
        assert wal.stats().moved == 100

    run(main)


async def with_unreadable_entries(machine):
    """A log that keeps its oldest segment, since an entry of A in it cannot be read."""
    wal = await idle_and_busy(machine)
    damage(machine, entry(3).payload)
    assert await collected(wal) == 0
    assert list(wal.unreadable) == [A]
    return wal


def test_unreadable_entries_are_named_and_kept():
    async def main(loop):
        machine = Machine(loop)
        wal = await with_unreadable_entries(machine)
        wal.release(A)
        assert await collected(wal) > 0
        assert not wal.unreadable

    run(main)


def test_forgotten_group_has_no_unreadable_entries():
    """Its next replica on this server would fail because of the previous one."""

    async def main(loop):
        machine = Machine(loop)
        wal = await with_unreadable_entries(machine)
        removed = loop.create_future()
        wal.forget(A, removed.set_result)
        assert await removed is None
        assert not wal.unreadable
        await durable(wal, A, entries(1, 5))
        wal.set_anchor(A, 3, 6, movable=True)
        await fill(wal, B, 101, 200)
        assert await collected(wal) > 0
        assert not wal.unreadable

    run(main)


def test_recovery_memory_is_independent_of_log_size():
    def peak(count):
        async def main(loop):
            machine = Machine(loop)
            wal, _ = await machine.open(segment_bytes=100_000)
            for i in range(1, count + 1, 40):
                await durable(wal, A, [entry(n, bytes(500)) for n in range(i, i + 40)])
            await wal.close()
            files = machine.files()
            tracemalloc.start()
            found = recover(files, "/d/wal", UUID, 0)
            size = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert found.groups[A].last == OpId(1, count)
            return size

        return run(main)

    small, large = peak(400), peak(4000)
    assert large < small + 600_000


def test_locations_of_moved_entries_are_exact():
    index = LogIndex()
    for n in range(1, 7):
        assert index.put(A, EntryLocation(n, 1, 1 if n < 4 else 2, 100 * n, 50))
    for n in (1, 2, 3):
        assert index.move(A, EntryLocation(n, 1, 3, n, 50))
    assert not index.move(A, EntryLocation(3, 2, 3, 1, 50))
    assert index.size_bytes(A, 2, 5) == 150
    index.drop_segment(A, 2, 5)
    assert index.bounds(A) == (6, 7)
    assert index.size_bytes(A, 0, 100) == 50


def test_entries_that_were_not_moved_are_gone_with_their_segment():
    """A member that needs them needs a copy; the rest of the group is readable."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=2000)
        await durable(wal, A, entries(1, 3))
        await fill(wal, B, 1, 100)
        wal.set_anchor(A, 2, 4, movable=True)
        wal.set_anchor(B, 1000)
        assert await collected(wal) > 0
        assert [e.id.index for e in await wal.read(A, 2, 1 << 20)] == [2, 3]
        with pytest.raises(LogGap):
            await wal.read(A, 1, 1 << 20)
        await wal.close()

    run(main)
