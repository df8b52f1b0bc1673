"""Flushes that are due again, or counted twice, because something happened during them."""

import asyncio
import errno
import itertools

import pytest

from nyala.common.options import Options
from tests.unit.replica.support.replica_support import scenario


@scenario(options=Options(wal_segment_mb=1, flush_bytes=1))
async def test_rows_applied_during_a_flush_are_flushed_after_it(fleet):
    leader = await fleet.leader()
    fleet.processes[leader].delays.compute_us = 2_000_000.0
    for _ in range(20):
        await fleet.write(b"k 1")
    machine = fleet.machine(leader)
    assert machine.unflushed_bytes() > 0, "a flush takes longer than the writes"
    await fleet.until(lambda: machine.unflushed_bytes() == 0, "all rows are flushed", 120_000)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_failed_flush_is_tried_again_without_another_write(code):
    @scenario(options=Options(wal_segment_mb=1, flush_bytes=1))
    async def steps(fleet):
        machine, times = fleet.machine(0), []
        whole = machine.prepare_flush

        def prepare_flush(flush_point):
            times.append(fleet.loop.now_us())
            if len(times) <= 4:
                raise OSError(code, "planted")
            return whole(flush_point)

        machine.prepare_flush = prepare_flush
        await fleet.write(b"k 1")
        await fleet.until(lambda: machine.sums and not machine.unflushed_bytes(), "flushed", 60_000)
        pauses = [round((b - a) / 1e6) for a, b in itertools.pairwise(times[:5])]
        assert pauses == ([1, 2, 4, 8] if code == errno.EIO else [1, 1, 1, 1])

    steps()


@scenario(options=Options(wal_segment_mb=1))
async def test_log_bytes_are_counted_once_by_flushes_that_wait_for_each_other(fleet):
    """An operator flushes while memory is tight; the count decides when the next flush is due."""
    leader = await fleet.leader()
    for _ in range(20):
        await fleet.write(b"k 1")
    replica = fleet.replica(leader)

    async def thrice():
        return await asyncio.gather(*(replica.flush() for _ in range(3)))

    assert await fleet.as_(leader, thrice()) == [True, False, False]
    assert replica.maintenance_stats().log_bytes == 0
