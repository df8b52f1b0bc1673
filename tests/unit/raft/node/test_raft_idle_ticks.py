"""Ticks that may be processed together: none of them sends anything but the last one of a leader."""

import pytest

from nyala.raft.messages import AppendEntries, RequestVote
from nyala.raft.options import RaftOptions
from tests.unit.raft.support.raft_quiescence import Group

LEASE = RaftOptions(promise_ms=100, promise_ticks=3, restart_ticks=6)


def elected(options=None):
    group = Group(options=options or RaftOptions())
    group.elect("1")
    group.settle()
    return group


def kinds(group):
    return {type(m) for m in group.network}


def test_leader_may_sleep_until_its_heartbeat():
    group = elected(RaftOptions(heartbeat_ticks=4, election_ticks=10))
    group.heartbeat("1")
    assert group["1"].view.idle_ticks == 4
    group.tick("1", 1)
    assert group["1"].view.idle_ticks == 3
    group.tick("1", 2)
    assert not kinds(group)
    group.tick("1", 1)
    assert kinds(group) == {AppendEntries}


def test_leader_with_a_pending_read_round_does_not_sleep():
    group = elected()
    group.heartbeat("1")
    group.read("1")
    assert group["1"].view.idle_ticks == 1


def test_leader_that_transfers_leadership_does_not_sleep():
    group = elected()
    group.heartbeat("1")
    group["1"].transfer(group["2"].uuid)
    assert group["1"].view.idle_ticks == 1


@pytest.mark.parametrize("options", [RaftOptions(), LEASE])
@pytest.mark.parametrize("timeout", [1, 2, 3, 4, 12])
def test_follower_may_sleep_until_the_tick_before_its_election(options, timeout):
    group = elected(options)
    core = group["2"].core
    core.elapsed, core.timeout = 0, timeout
    idle = group["2"].view.idle_ticks
    assert idle == max(1, max(timeout, options.promise_ticks) - 1)
    if timeout > 1 or options.promise_ticks:
        group.tick("2", idle)
        assert not kinds(group)
        assert group["2"].view.idle_ticks == 1
    group.tick("2", 1)
    assert kinds(group) == {RequestVote}
