"""Quiescent groups and their members: absent, removed and joining ones; durable terms and votes."""

from dataclasses import replace

import pytest

from nyala.common.ids import ServerUuid
from nyala.raft.membership import Member
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.reconfiguration.removed_peers import HEARTBEATS
from nyala.raft.roles.quiescence import SILENT_TIMEOUTS
from tests.enough import enough
from tests.salt import generator
from tests.selected import first
from tests.unit.raft.support.raft_quiescence import (
    IDLE,
    ONE,
    OPTIONS,
    THREE,
    TWO,
    Group,
    asleep_group,
)


def test_group_quiesces_without_absent_member_and_catches_it_up_when_woken():
    group = Group()
    group.elect("1")
    group.crash("3")
    group.propose("1", "x")
    group.settle()
    group.rest()
    assert group.quiesced() == [], "the group waits for the missing member"
    group.absent = (THREE,)
    group.rest()
    assert group.quiesced() == ["1", "2"]
    group.restart("3")
    group.absent = ()
    group["1"].wake()
    group.rest()
    assert group["3"].last == group["1"].last
    assert group.quiesced() == ["1", "2", "3"]


def test_group_quiesces_without_long_silent_voter_and_is_woken_by_it():
    """Its replica has FAILED, and its server runs."""
    group = Group()
    group.elect("1")
    group.crash("3")
    group.propose("1", "x")
    group.settle()
    group.beat(times=SILENT_TIMEOUTS * OPTIONS.election_ticks // OPTIONS.heartbeat_ticks - 1)
    assert group.quiesced() == [], "the group waits for the missing member"
    group.rest()
    assert group.quiesced() == ["1", "2"]
    group.propose("1", "y")
    group.rest()
    assert group.quiesced() == ["1", "2"], "the returned member is not waited for again"
    group.restart("3")
    group.everyone_ticks(2 * OPTIONS.election_ticks)
    assert group["3"].last == group["1"].last
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]
    assert group["1"].term == 1, "no election took place"


@pytest.mark.parametrize(
    "more", [{"nonvoters": "4"}, {"witnesses": "3"}], ids=["non-voter", "witness"]
)
def test_unelectable_member_delays_quiescence_while_its_server_lives(more):
    group = Group("123", **more)
    group.elect("1")
    removed = "4" if "4" in group.servers else "3"
    group.crash(removed)
    group.propose("1", "x")
    group.settle()
    group.beat(times=4 * SILENT_TIMEOUTS * OPTIONS.election_ticks // OPTIONS.heartbeat_ticks)
    assert group.quiesced() == []


def test_leader_stays_active_until_removed_member_is_notified_or_abandoned():
    group = asleep_group()
    group.crash("3")
    group.change("1", Change(ChangeKind.REMOVE, Member(THREE, "3:1")))
    group.settle()
    group.rest()
    assert group.quiesced() == [], "the removed member is still being notified"
    group.beat(times=HEARTBEATS)
    assert group.quiesced() == ["1", "2"]


def test_minority_does_not_quiesce():
    group = Group()
    group.elect("1")
    group.absent = (TWO, THREE)
    group.beat(times=IDLE + 4)
    assert group.quiesced() == []


def test_non_voter_to_be_promoted_keeps_group_active():
    group = Group("123", nonvoters="4")
    group.elect("1")
    group.rest()
    assert group.quiesced() == ["1", "2", "3", "4"]
    promoted = tuple(replace(m, promote=True) if not m.voter else m for m in group.config.members)
    group.config = replace(group.config, members=promoted)
    for u in "1234":
        group.crash(u)
    for u in "123":
        group.restart(u)
    group.elect("1")
    group.absent = (ServerUuid("4"),)
    group.rest()
    assert group.quiesced() == []
    group.absent = ()
    group.restart("4")
    group.rest()
    group.rest()
    assert group["4"].status().config.voters == ("1", "2", "3", "4")
    assert group.quiesced() == ["1", "2", "3", "4"]


@pytest.mark.parametrize("seed", first(range(12), 6))
def test_quiescence_under_loss_duplication_and_crashes_violates_no_guarantee(seed):
    rng = generator(seed)
    group = Group("123", random=lambda _: rng.randrange)
    slept = 0
    for step in range(1500):
        draw = rng.random()
        names = [s.uuid for s in group.alive]
        if draw < 0.55 and group.network:
            message = group.network.pop(rng.randrange(len(group.network)))
            if rng.random() < 0.85:
                group.deliver(message)
            if rng.random() < 0.05:
                group.network.append(message)
        elif draw < 0.9 and names:
            group.tick(rng.choice(names))
        elif draw < 0.92 and names:
            group.propose(rng.choice(names), f"{step}")
        elif draw < 0.94 and names:
            group[rng.choice(names)].wake()
        elif draw < 0.95 and names:
            group.absent = (rng.choice((ONE, TWO, THREE)),) if rng.random() < 0.5 else ()
        elif draw < 0.96 and len(names) == 3:
            group.crash(rng.choice(names))
        elif draw < 0.98:
            for u in "123":
                if not group.servers[u].alive:
                    group.restart(u)
        slept += len(group.quiesced()) > 0
        group.check_all()
    group.absent = ()
    for u in "123":
        if not group.servers[u].alive:
            group.restart(u)
    for _ in range(100):  # the hosts wake groups that quiesced with a server in doubt
        for u in "123":
            group[u].wake()
        group.everyone_ticks(10)
        leaders = [u for u in "123" if group[u].is_leader]
        if leaders and group.propose(leaders[-1], "last") is not None:
            group.everyone_ticks(20)
            if len({group[u].commit_index for u in "123"}) == 1:
                break
    group.everyone_ticks(60)
    assert group.quiesced() == ["1", "2", "3"]
    assert len({group[u].last for u in "123"}) == 1
    enough(slept, "the group was quiescent")


def test_new_eager_group_campaigns_and_quiesces_at_once_and_old_group_does_not():
    least = OPTIONS.election_ticks
    group = Group(options=replace(OPTIONS, eager=True))
    waited = 0
    while not any(s.node.is_leader for s in group.alive):
        group.everyone_ticks(1)
        waited += 1
    assert waited < least, "an eager group campaigns before the election timeout"
    (leader,) = [s for s in group.alive if s.node.is_leader]
    assert all(s.node.core.timeout >= least for s in group.alive if s is not leader)
    group.beat(leader.uuid, 3)
    assert group.quiesced() == ["1", "2", "3"], "the log has the first leader's entry only"
    leader.node.propose(b"x", leader.node.core.hlc + 1)
    group.work(leader)
    group.settle()
    group.beat(leader.uuid, 3)
    assert group.quiesced() == []
    assert group.rest(leader.uuid).quiesced() == ["1", "2", "3"]
