"""A collection beside concurrent events: anchors that decrease while entries are moved, and shutdown."""

import asyncio
from typing import Any

from nyala.wal import collect
from nyala.wal.segments.allocator import SegmentAllocator
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_content import fill
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    C,
    Machine,
    collected,
    durable,
    entries,
    indices,
    open_wal,
    vote,
)

SEGMENT = 2000


async def beside_a_busy_group(machine, count, busy=100):
    """Write entries of A, all needed and movable; B fills the log without needed entries."""
    wal, _ = await machine.open(segment_bytes=SEGMENT)
    await durable(wal, A, entries(1, count))
    wal.set_anchor(A, 1, count + 1, movable=True)
    await fill(wal, B, 1, busy)
    wal.set_anchor(B, 10_000)
    return wal


def test_entries_anchored_during_move_keep_their_segment():
    """A new leader is elected, without the positions of its members."""

    async def main(loop):
        machine = Machine(loop)
        wal = await beside_a_busy_group(machine, 5)
        wal.set_anchor(A, 4, 6, movable=True)
        task = wal.collect()
        for _ in range(10_000):
            if wal.stats().moved:
                break
            assert not task.done()
            wal.set_anchor(A, 4, 6, movable=True)
            if wal.stats().pending_bytes:  # the run is being written
                wal.set_anchor(A, 2, 6, movable=True)
            await loop.delay(10)
        assert wal.stats().moved == 2
        await task
        assert [e.id.index for e in await wal.read(A, 2, 1 << 20)] == [2, 3, 4, 5]
        assert await collected(wal) > 2
        assert [e.id.index for e in await wal.read(A, 2, 1 << 20)] == [2, 3, 4, 5]
        machine.disk.crash()
        wal, recovered = await machine.open(segment_bytes=SEGMENT)
        assert indices(recovered, A) == [2, 3, 4, 5]

    run(main)


def test_collection_examines_only_segments_present_at_start(monkeypatch):
    """Moved entries fill segments of their own: their collection would move the same entries repeatedly."""
    monkeypatch.setattr(collect, "MOVE_SHARE", 1)

    async def main(loop):
        machine = Machine(loop)
        wal = await beside_a_busy_group(machine, 60)
        before = wal.stats()
        removed = await collected(wal)
        assert wal.stats().moved == 60
        assert removed == before.segments - 1
        assert [e.id.index for e in await wal.read(A, 1, 1 << 20)] == list(range(1, 61))

    run(main)


def test_records_after_forgotten_empty_replica_are_kept():
    """A released replica is deleted, and copied again: its entries precede its first anchor."""

    async def main(loop):
        machine = Machine(loop)
        wal = await beside_a_busy_group(machine, 5)
        wal.release(A)
        removed = loop.create_future()
        wal.forget(A, removed.set_result)
        assert await removed is None
        await durable(wal, A, entries(1, 5))
        await fill(wal, B, 101, 200)
        await collected(wal)
        assert [e.id.index for e in await wal.read(A, 1, 1 << 20)] == [1, 2, 3, 4, 5]

    run(main)


def test_hard_state_of_group_being_forgotten_is_not_rewritten():
    """The record that voids the group waits for a slow log; a rewritten vote after it would stay there."""

    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, A, [], vote(4, "cd" * 16))
        await durable(wal, C, [], vote(5, "cd" * 16))
        await fill(wal, B, 1, 30)
        wal.set_anchor(B, 31)
        forgotten = loop.create_future()
        wal.forget(A, forgotten.set_result)
        assert await collected(wal) > 0
        assert forgotten.result() is None
        machine.disk.crash()
        _, recovered = await machine.open(segment_bytes=1000)
        assert A not in recovered
        assert recovered[C].hard_state == vote(5, "cd" * 16)

    run(main)


def test_hard_state_of_only_group_being_forgotten_waits_for_next_collection():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(segment_bytes=1000)
        await durable(wal, A, [], vote(4, "cd" * 16))
        await fill(wal, B, 1, 30)
        wal.set_anchor(B, 31)
        forgotten = loop.create_future()
        wal.forget(A, forgotten.set_result)
        assert await collected(wal) == 0
        assert await forgotten is None
        assert await collected(wal) > 0
        machine.disk.crash()
        _, recovered = await machine.open(segment_bytes=1000)
        assert A not in recovered

    run(main)


def test_moved_entries_wait_for_late_segment(monkeypatch):
    """Findings C9: a segment has a bound whatever is written to it."""
    monkeypatch.setattr(collect, "MOVE_SHARE", 1)
    monkeypatch.setattr(collect, "MOVE_BYTES", 1)

    async def main(loop):
        machine = Machine(loop)
        tasks: Any = machine.tasks()
        late, in_lane = asyncio.Event(), tasks.run

        async def run_unless_late(lane, work, *args, **more):
            if getattr(work, "__func__", None) is SegmentAllocator.create:
                await late.wait()
            return await in_lane(lane, work, *args, **more)

        wal, _ = await open_wal(machine.files(), tasks, segment_bytes=SEGMENT, queue_bytes=SEGMENT)
        await fill(wal, A, 1, 60)
        wal.set_anchor(A, 1, 61, movable=True)
        await fill(wal, B, 1, 100)
        wal.set_anchor(B, 10_000)
        tasks.run = run_unless_late
        before = wal.stats()
        assert before.pinned_by == (A,)
        assert await collected(wal) == 0
        assert 0 < wal.stats().moved < 60
        assert wal.stats().rolls <= before.rolls + 1
        assert wal.stats().bytes_written - before.bytes_written <= 3 * SEGMENT
        late.set()
        await loop.delay(1_000_000)
        assert await collected(wal) > 0
        assert [e.id.index for e in await wal.read(A, 1, 1 << 20)] == list(range(1, 61))

    run(main)
