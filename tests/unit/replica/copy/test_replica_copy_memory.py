"""A copy with a long log: its entries are on disk until they are applied, one message at a time."""

from unittest.mock import patch

from nyala.common.options import Options
from nyala.replica.registry import ReplicaRegistry
from nyala.replica.status import State
from tests.unit.replica.support.copy_steps import add, fill, flush
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.replica_support import GROUP

BIG = b"k" * 200_000 + b" 1"


@scenario(options=Options(wal_segment_mb=1, copy_chunk_bytes=700, raft_cache_bytes=1 << 16))
async def test_copied_log_is_streamed_in_bounded_memory(fleet):
    await fill(fleet, 3)
    leader = await flush(fleet)
    for _ in range(25):
        await fleet.write(BIG)
    await add(fleet, 3)  # a configuration among the copied entries
    most = [0]
    add_replica = ReplicaRegistry.add

    def added(registry, group, opened):
        most.append(opened.node.core.log.memory_bytes)
        return add_replica(registry, group, opened)

    with patch.object(ReplicaRegistry, "add", added):
        await fleet.order(3, leader)
        await fleet.until(
            lambda: fleet.host(3).find(GROUP) is not None, "the replica is opened", 60_000
        )

    def done():
        replica = fleet.host(3).find(GROUP)
        node = None if replica is None else replica.node
        if node is None:
            return False
        member = replica.member
        most.append(node.core.log.memory_bytes + member.applier.backlog_bytes)
        return replica.state is State.RUNNING and node.core.log.applied == node.last.index

    await fleet.until(done, "all entries are applied", 60_000)
    await fill(fleet, 2)
    await fleet.settled()
    assert fleet.machine(3).sums == fleet.machine(leader).sums
    assert len(most) > 1
    assert max(most) < 2 << 20, "5 MB of log were in memory"
    await fleet.restart_after_power_cut(3)
    await fleet.settled()
    assert fleet.machine(3).sums == fleet.machine(leader).sums
