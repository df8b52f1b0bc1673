"""Flushes that are due again, or counted twice, because something happened during them."""

import asyncio
import errno
import itertools
from functools import partial

import pytest

from nyala.common.options import Options
from nyala.replica.status import State
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


@scenario(options=Options(wal_segment_mb=1))
async def test_flush_whose_caller_is_cancelled_is_completed(fleet):
    """The target of a copy may end while its source flushes for it; the machine refuses a second flush."""
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    replica, machine, done = fleet.replica(leader), fleet.machine(leader), []
    whole = machine.prepare_flush

    def prepare_flush(flush_point):
        build = whole(flush_point)

        def install(built):
            built()
            done.append(flush_point.op)

        return build and (lambda: partial(install, build()))

    machine.prepare_flush = prepare_flush

    async def flush_and_cancel(wait_ms):
        task = asyncio.ensure_future(replica.flush())
        await replica.context.env.tasks.sleep_ms(wait_ms)
        task.cancel()
        await asyncio.wait([task])

    fleet.processes[leader].delays.compute_us = 1_000_000.0
    await fleet.as_(leader, flush_and_cancel(100))
    assert done == [machine.flush_point.op]
    await fleet.write(b"k 1")
    await fleet.as_(leader, flush_and_cancel(0.001))  # while the flush is prepared
    assert len(done) == 2
    assert machine.unflushed_bytes() == 0


@scenario(options=Options(wal_segment_mb=1))
async def test_replica_whose_compaction_ends_in_a_bug_while_it_is_installed_fails(fleet):
    """Its memory may differ from its files; the scheduler of compactions only logs the error."""
    leader = await fleet.leader()

    def install():
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        await fleet.as_(leader, fleet.replica(leader).maintain(lambda: lambda: install))
    fleet.forgive(ValueError)
    assert fleet.replica(leader).state is State.FAILED
    await fleet.write(b"k 1")
