"""A follower that applies more slowly than it receives refuses entries, reports that, and continues later."""

from tests.unit.replica.support.replica_support import scenario


@scenario()
async def test_follower_with_apply_backlog_accepts_no_entries_until_caught_up(
    fleet,
):
    await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    member = fleet.replica(follower).member
    limit = fleet.replica(follower).context.options.write_queue_bytes

    member.applier.backlog_bytes += limit + 1
    last = member.node.last
    for _ in range(3):
        await fleet.write(b"k 1")
    await fleet.pass_ms(2_000)
    assert member.node.last == last
    peers = {p.uuid: p.out_of_memory for p in fleet.replica(leader).status().peers}
    assert sorted(peers.values()) == [False, True]
    member.applier.backlog_bytes -= limit + 1
    await fleet.settled()
    assert member.node.last == fleet.replica(leader).node.last
