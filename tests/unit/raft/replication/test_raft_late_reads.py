"""Entries that a leader read for a peer too late, and entries that are not durable at the peer."""

from nyala.common.ids import ServerUuid
from nyala.raft.messages import AppendEntries, AppendReply
from nyala.raft.options import RaftOptions
from tests.unit.raft.support.raft_harness import Cluster

ONE, TWO, THREE = map(ServerUuid, "123")


def test_entries_acknowledged_during_log_read_are_not_sent():
    group = Cluster((ONE, TWO, THREE), options=RaftOptions(cache_bytes=0))
    group.elect(ONE)
    for _ in range(4):
        group.propose(ONE, "x")
        group.settle(lambda m: THREE not in (m.to, m.sender))
        group.network.clear()
    leader, server = group[ONE], group.servers[ONE]
    leadership = server.node.core.leadership
    assert leadership is not None
    peer = leadership.peers[THREE]
    peer.probe(2)
    leader.core.dirty = True
    reading = [r for r in leader.ready().read if r.peer == THREE]
    assert [r.first_index for r in reading] == [2]
    peer.next = 4  # a delayed answer reports that it has more
    leader.entries_read(THREE, server.disk.read(2))
    sent = [
        o.message
        for o in leader.ready().send
        if isinstance(o.message, AppendEntries) and o.message.entries
    ]
    assert all(m.entries[0].id.index == m.previous.index + 1 for m in sent)
    assert not any(m.to == THREE for m in sent)


def test_received_but_not_durable_entries_may_be_resent():
    """A power failure there removes it: until it is durable, all members keep it."""
    group = Cluster((ONE, TWO, THREE))
    group.elect(ONE)
    for _ in range(4):
        group.propose(ONE, "x")
        group.settle(lambda m: THREE not in (m.to, m.sender))
        group.network.clear()
    leader = group[ONE]
    match = next(p.match for p in leader.status().peers if p.uuid == THREE)
    last = leader.last
    leader.step(
        AppendReply(
            sender=THREE, to=ONE, term=leader.term, hlc=99, success=True, match=match, hint=last,
            round=leader.core.round,
        ),
        99,
    )  # fmt: skip
    assert leader.view.retain_index == match + 1 < last.index
    leader.step(
        AppendReply(
            sender=THREE, to=ONE, term=leader.term, hlc=99, success=True, match=last.index, hint=last,
            round=leader.core.round,
        ),
        99,
    )  # fmt: skip
    assert leader.view.retain_index == last.index + 1
