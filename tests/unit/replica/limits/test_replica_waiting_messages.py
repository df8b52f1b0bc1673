"""Messages of a member whose disk is full, or hangs, for long: their number has a limit."""

from nyala.common.options import Options
from nyala.raft.messages import AppendReply, PeerBatch
from nyala.replica.member.driver import MAX_WAITING
from tests.unit.replica.support.replica_support import record_batches, scenario

BUSY = Options(wal_segment_mb=1, raft_quiesce_ms=0)


def _count(batches, kind):
    return sum(isinstance(m, kind) for batch in batches for _, m in batch.messages)


@scenario(options=BUSY)
async def test_replies_that_wait_for_a_hanging_disk_are_limited(fleet):
    """The follower has to record a new term before it replies to that term's leader."""
    leader = await fleet.leader()
    follower, other = (n for n in range(3) if n != leader)
    process = fleet.processes[follower]
    process.delays.disk_us = 60_000_000
    fleet.replica(leader).transfer(fleet.replica(other).context.uuid)
    await fleet.until(lambda: fleet.leading() == other, "the other server leads")
    sent: list[PeerBatch] = []
    record_batches(process, sent)
    await fleet.pass_ms(40_000)
    assert _count(sent, AppendReply) == 0
    process.delays.disk_us = 1_000
    await fleet.until(lambda: _count(sent, AppendReply) > 0, "the term is durable", 60_000)
    assert _count(sent, AppendReply) <= MAX_WAITING
    await fleet.write(b"k 1")
    await fleet.settled()


@scenario(options=BUSY)
async def test_node_of_a_member_with_a_full_disk_accumulates_no_messages(fleet):
    await fleet.write(b"k 1")
    follower = (await fleet.leader() + 1) % 3
    process = fleet.processes[follower]
    process.disk.faults.capacity_bytes = process.disk.used_bytes()
    driver = fleet.replica(follower).member.driver
    while not driver.stalled:
        await fleet.write(b"k" * 100_000 + b" 1")
        await fleet.pass_ms(50)
    await fleet.pass_ms(40_000)
    assert driver.stalled
    assert len(fleet.replica(follower).node.take_messages()) < 10, "the node keeps none of them"
    process.disk.faults.capacity_bytes = None
    await fleet.settled()
