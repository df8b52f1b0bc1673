"""A member that answers and acknowledges nothing is counted by its leader's server."""

from nyala.common.options import Options
from nyala.raft.messages import AppendEntries
from nyala.replica.host import STUCK_MS
from tests.unit.replica.support.replica_support import scenario


def stuck(fleet, number):
    registry = fleet.processes[number].server.metrics.registry
    return registry.get_sample_value("nyala_replica_stuck_members")


@scenario(options=Options(wal_segment_mb=1, raft_quiesce_ms=0))
async def test_member_without_progress_is_counted_until_caught_up(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    follower = next(n for n in range(3) if n != leader)
    member = fleet.replica(follower).member
    step = member.step

    def drop_entries(message, hlc):
        if not (isinstance(message, AppendEntries) and message.entries):
            step(message, hlc)

    member.step = drop_entries
    await fleet.write(b"k 1")
    await fleet.pass_ms(STUCK_MS + 1000)
    (peer,) = [p for p in fleet.replica(leader).status().peers if p.ticks_stuck]
    assert peer.ticks_stuck * 50 >= STUCK_MS
    assert peer.ticks_silent * 50 < 1000
    assert [stuck(fleet, n) for n in range(3)] == [float(n == leader) for n in range(3)]
    del member.step
    await fleet.settled()
    assert stuck(fleet, leader) == 0
