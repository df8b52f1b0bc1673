"""A read round of a group with a single voter, which needs no reply."""

from nyala.common.ids import ServerUuid
from nyala.raft.membership import Member, initial
from nyala.raft.messages import HardState
from nyala.raft.node import RaftNode

ALONE = ServerUuid("1")


def leader_of_one():
    node = RaftNode(ALONE, initial([Member(ALONE, "1:1")]), HardState(), random=lambda n: 0)
    while not node.commit_index:
        node.tick(1)
        node.durable(node.ready().point)
    node.ready()
    return node


def test_read_joins_after_commit_has_confirmed_unsent_round():
    """A write becomes durable between two reads, before the host asks for work."""
    node = leader_of_one()
    op = node.propose(b"x", 100)
    point = node.ready().point
    first = node.read_index(10)
    node.durable(point)
    assert node.commit_index == op.index
    second = node.read_index(11)
    assert second > first
    confirmed = node.ready().confirmed
    assert (confirmed.round, confirmed.index) == (second, op.index)
