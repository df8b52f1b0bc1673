"""Hybrid times in the core: shared read rounds, and a host's clock that is corrected."""

from nyala.common.ids import OpId
from nyala.raft.messages import AppendReply, HardState, RequestVote, VoteReply
from tests.unit.raft.support.raft_harness import altered
from tests.unit.raft.support.raft_node import A, B, C, cluster_with_leader, node

FAR = 1 << 62
"""A reading of a clock that is decades ahead."""


def test_shared_read_round_is_confirmed_at_later_time():
    n = cluster_with_leader()["1"]
    number = n.read_index(9_000)
    assert n.read_index(9_500) == number
    assert {m.message.hlc for m in n.ready().send} == {9_500}
    echo = AppendReply(
        sender=B, to=A, term=1, success=True, match=1, hint=OpId(1, 1), round=number, hlc=9_400
    )
    n.step(echo, 9_501)
    assert n.ready().confirmed is None, (
        "a later leader could write at 9,450, below the second read's time"
    )
    n.step(altered(echo, hlc=9_500), 9_502)
    assert n.ready().confirmed.round == number


def test_core_discards_time_of_wrong_clock():
    n = node(HardState(1))
    while not any(isinstance(o.message, RequestVote) for o in n.ready().send):
        n.tick(FAR)
    n.step(VoteReply(sender=B, to=A, term=2, granted=True, pre=True), 5_000)
    n.durable(n.ready().point)
    n.step(VoteReply(sender=C, to=A, term=2, granted=True), 5_001)
    assert n.is_leader
    (first,) = n.ready().append
    assert first.stamp == 5_001, "the leader's first entry has a timestamp of the corrected clock"


def test_core_requests_votes_with_current_time():
    n = node(HardState(1))
    n.tick(FAR)
    sent = n.ready().send
    while not sent:
        n.tick(5_000)
        sent = n.ready().send
    assert {o.message.hlc for o in sent} == {5_000}
