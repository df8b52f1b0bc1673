"""Records that let the log shrink are never refused; and a segment has a bound (C4, C9, C10)."""

import asyncio
import logging
from contextlib import suppress

import pytest

from nyala.common.errors import Throttled
from nyala.common.ids import TabletId
from nyala.env.files import SystemFiles
from nyala.env.tasks import Lane
from tests.sim.world.loop import run
from tests.unit.wal.support.wal_full import RESERVE, SEGMENT, until_refused
from tests.unit.wal.support.wal_harness import (
    A,
    B,
    HeldTasks,
    Machine,
    append,
    durable,
    entry,
    open_wal,
    vote,
)
from tests.waiting import eventually

CLEANUP = 10_000


async def full(loop, groups, spare=48):
    """A log of a few segments on a full disk; the oldest has the only hard state of some groups."""
    machine = Machine(loop)
    wal, _ = await machine.open(segment_bytes=SEGMENT, reserve_bytes=RESERVE, cleanup_bytes=CLEANUP)
    for n in range(groups):
        await durable(wal, TabletId(f"{n + 100:032x}"), [], vote(3, "ab" * 16))
    machine.disk.faults.capacity_bytes = RESERVE + 5 * SEGMENT + spare
    last, _ = await until_refused(wal, loop, 1)
    return machine, wal, last


@pytest.mark.parametrize("groups", [1, 20])
def test_hard_states_are_rewritten_on_full_disk_so_that_segments_are_collected(groups):
    async def main(loop):
        machine, wal, last = await full(loop, groups)
        wal.set_anchor(A, last + 1)
        assert await wal.collect() > 1
        free = machine.disk.faults.capacity_bytes - machine.disk.used_bytes()
        assert free >= RESERVE - CLEANUP
        await loop.delay(3_000_000)
        await durable(wal, A, [entry(last + 1, bytes(400))])
        machine.disk.crash()
        _, recovered = await machine.open(segment_bytes=SEGMENT)
        states = [recovered[TabletId(f"{n + 100:032x}")].hard_state for n in range(groups)]
        assert states == [vote(3, "ab" * 16)] * groups

    run(main)


def test_deleted_replica_is_forgotten_on_full_disk_behind_waiting_round():
    async def main(loop):
        machine = Machine(loop)
        wal, _ = await machine.open(
            segment_bytes=SEGMENT, reserve_bytes=RESERVE, cleanup_bytes=CLEANUP
        )
        await durable(wal, B, [entry(1, bytes(3 * SEGMENT))])
        await loop.delay(1_000_000)
        machine.disk.faults.capacity_bytes = machine.disk.used_bytes() + RESERVE
        large = append(wal, A, [entry(1, bytes(SEGMENT + 400))])
        await loop.delay(3_000_000)
        assert not large.done()
        removed = loop.create_future()
        wal.forget(B, removed.set_result)
        assert await removed is None
        assert large.result() is None

    run(main)


def test_full_queue_accepts_markers_and_records_that_free_segments(tmp_path, caplog):
    async def main():
        tasks = HeldTasks()
        wal, _ = await open_wal(
            SystemFiles(), tasks, queue_bytes=3300, segment_bytes=1 << 20, sync=False,
            sync_interval_ms=300, directory=str(tmp_path),
        )  # fmt: skip
        await durable(wal, A, [entry(1)])
        tasks.held = Lane.DISK
        waiting = [append(wal, A, [entry(i)]) for i in range(2, 22)]
        with pytest.raises(Throttled):
            append(wal, A, [entry(22, bytes(3000))])
        assert wal.stats().markers == 0
        await eventually(lambda: wal.stats().markers == 1, "a marker of the first round")
        removed = asyncio.get_running_loop().create_future()
        wal.forget(B, removed.set_result)
        tasks.gate.set()
        tasks.held = None
        assert await removed is None
        assert await asyncio.gather(*waiting) == [None] * len(waiting)
        await wal.close()

    asyncio.run(main())
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_segment_stops_growing_when_next_one_is_late(tmp_path):
    """Lane COMPUTE is busy with a long compaction: the next segment is not created."""

    async def main():
        tasks = HeldTasks()
        wal, _ = await open_wal(
            SystemFiles(), tasks, segment_bytes=SEGMENT, queue_bytes=4 * SEGMENT,
            directory=str(tmp_path),
        )  # fmt: skip
        tasks.held = Lane.COMPUTE
        first, refused = 1, None
        while refused is None and first < 200:
            try:
                await durable(wal, A, [entry(first, bytes(800))])
                first += 1
            except Throttled as err:
                refused = err
        assert refused is not None, "the segment grows without a limit"
        assert "waits for its next segment" in refused.message
        assert wal.stats().rolls == 0
        assert wal.stats().bytes_written <= 5 * SEGMENT
        tasks.gate.set()
        tasks.held = None
        taken = []

        def offer():
            with suppress(Throttled):
                taken.append(append(wal, A, [entry(first, bytes(800))]))
            return taken

        await eventually(offer, "the next segment")
        assert await taken[0] is None
        assert wal.stats().rolls == 1
        assert wal.failed is None
        await wal.close()

    asyncio.run(main())
