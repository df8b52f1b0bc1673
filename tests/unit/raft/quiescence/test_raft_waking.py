"""Events that end the quiescence of a group, events that do not, and their consequences."""

import random

from nyala.common.ids import OpId
from nyala.raft.messages import AppendEntries
from nyala.raft.state import RaftState
from tests.unit.raft.support.raft_harness import altered
from tests.unit.raft.support.raft_quiescence import (
    ONE,
    OPTIONS,
    THREE,
    TWO,
    Group,
    asleep_group,
    candidate,
)


def test_quiescent_follower_refuses_candidate_and_wakes_leader():
    group = asleep_group()
    for pre in (True, False):
        group.deliver(candidate(group, "2", pre=pre))
        assert group["2"].quiesced
        assert all(not m.granted for m in group.network)
        assert group["2"].term == 1
    group.network.clear()
    group.deliver(candidate(group, "1"))
    assert group.quiesced() == ["2", "3"]
    group.tick("1")
    assert {m.to for m in group.network if isinstance(m, AppendEntries)} == {"2", "3"}


def test_leader_that_campaigns_is_no_longer_leader():
    group = asleep_group()
    group.deliver(altered(candidate(group, "2"), sender=ONE))
    assert group.quiesced() == ["1", "3"]
    assert not group.network[-1].granted, "the pre-vote is refused because of a recent leader"


def test_election_ordered_by_leader_wakes_quiescent_follower():
    group = asleep_group()
    group.deliver(candidate(group, "2", pre=False, override=True))
    assert not group["2"].quiesced
    assert group["2"].term == 2
    assert group.network[-1].granted


def test_message_of_earlier_term_wakes_no_member():
    group = asleep_group()
    group.deliver(AppendEntries(sender=THREE, to=TWO, term=0, previous=OpId(0, 0)))
    assert group["2"].quiesced
    assert [(m.term, m.success) for m in group.network] == [(1, False)]


def test_woken_follower_queries_leader_and_accepts_its_answer():
    group = asleep_group()
    group["2"].wake()
    group.settle()
    assert group.quiesced() == ["3"], "the leader received the query"
    group.everyone_ticks(4)
    assert not group["2"].quiesced
    assert group["2"].core.has_live_leader
    group.everyone_ticks(40)
    assert group.quiesced() == ["1", "2", "3"]
    assert group["1"].term == 1


def test_woken_followers_of_dead_leader_elect_new_one_within_election_timeout():
    group = asleep_group()
    group.crash("1")
    for u in "23":
        group[u].wake()
        assert not group[u].core.has_live_leader
    group.everyone_ticks(OPTIONS.election_ticks + 1)
    assert [u for u in "23" if group[u].is_leader]


def test_elections_of_woken_groups_are_spread_over_time():
    draw = random.Random(1)
    groups = [asleep_group(random=lambda _: draw.randrange) for _ in range(30)]
    for group in groups:
        group["2"].wake()
    timeouts = {g["2"].core.timeout for g in groups}
    assert min(timeouts) >= 2
    assert max(timeouts) <= OPTIONS.election_ticks + 1
    assert len(timeouts) > OPTIONS.election_ticks // 2


def test_woken_leader_without_contact_steps_down():
    group = asleep_group()
    group.crash("2")
    group.crash("3")
    group["1"].wake()
    group.tick("1", 2 * OPTIONS.election_ticks)
    assert group["1"].core.state is not RaftState.LEADER


def test_waking_active_member_does_nothing():
    group = Group()
    group.elect("1")
    for u in "123":
        before = (group[u].core.ticks_since_leader, group[u].core.timeout)
        group[u].wake()
        assert (group[u].core.ticks_since_leader, group[u].core.timeout) == before
    assert group.network == []


def test_followers_notified_of_leader_exit_elect_another_within_election_timeout():
    group = Group()
    group.elect("1")
    group.crash("1")
    for u in "23":
        assert group[u].peer_exited(ONE)
        assert not group[u].core.has_live_leader
        assert not group[u].peer_exited(ONE), "a second notification has no effect"
    group.everyone_ticks(OPTIONS.election_ticks + 1)
    assert [u for u in "23" if group[u].is_leader]


def test_wrong_exit_notice_is_cancelled_by_leader_message():
    group = Group()
    group.elect("1")
    assert group["2"].peer_exited(ONE)
    group.settle()
    group.everyone_ticks(40)
    assert (group["1"].is_leader, group["1"].term) == (True, 1)
    assert group["2"].core.has_live_leader


def test_single_follower_that_assumes_leader_exit_is_refused():
    group = Group()
    group.elect("1")
    assert group["2"].peer_exited(ONE)
    group.network.clear()
    group.tick("2", OPTIONS.election_ticks + 1)
    group.settle()
    assert (group["1"].is_leader, group["1"].term, group["3"].term) == (True, 1, 1)


def test_exit_of_non_leader_changes_nothing():
    group = Group()
    group.elect("1")
    before = [(group[u].core.ticks_since_leader, group[u].core.timeout) for u in "123"]
    assert not any(group[u].peer_exited(THREE) for u in "123")
    assert not group["1"].peer_exited(ONE)
    assert [(group[u].core.ticks_since_leader, group[u].core.timeout) for u in "123"] == before
    assert group.network == []
