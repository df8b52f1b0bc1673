"""A flush during which enough is applied for the next one: that one follows without a further write."""

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
    await fleet.until(lambda: machine.unflushed_bytes() == 0, "all is flushed", 120_000)
