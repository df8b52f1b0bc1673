"""Quiescence of groups at the level of the core: its conditions, and the events that prevent or end it."""

import pytest

from nyala.common.ids import OpId
from nyala.raft.messages import AppendEntries, AppendReply
from nyala.raft.options import RaftOptions
from tests.unit.raft.support.raft_harness import altered
from tests.unit.raft.support.raft_quiescence import (
    IDLE,
    ONE,
    THREE,
    TWO,
    Group,
    asleep_group,
    lose_offers,
    offered,
)


def test_idle_group_quiesces_and_ignores_ticks():
    group = asleep_group()
    group.everyone_ticks(12_000)  # ten minutes
    assert group.network == []
    assert group.quiesced() == ["1", "2", "3"]
    assert [group[u].term for u in "123"] == [1, 1, 1]
    assert group["2"].status().quiesced
    group.check_all()


def test_group_with_quiescence_disabled_never_quiesces():
    group = Group(options=RaftOptions())
    group.elect("1")
    group.beat(times=50)
    assert group.quiesced() == []


def test_occasional_requests_keep_group_active():
    group = Group()
    group.elect("1")
    for n in range(10):
        for _ in range(IDLE - 1):
            group.beat()
            assert group.quiesced() == []
        if n % 2:
            group.propose("1", f"{n}")
        else:
            assert group.read("1") is not None
        group.settle()
        assert group.quiesced() == []
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]


@pytest.mark.parametrize("doing", ["write", "read", "transfer", "close"])
def test_every_request_wakes_its_group(doing):
    group = asleep_group()
    if doing == "write":
        group.propose("1", "y")
    elif doing == "read":
        group.read("1")
    elif doing == "close":
        group["1"].publish_closed(group.now(group.servers["1"]))
        group["1"].read_index()
    else:
        group["1"].transfer(TWO)
    group.settle()
    assert group.quiesced() == []
    if doing == "write":
        assert group["1"].commit_index == group["1"].last.index == 3
    elif doing == "read":
        assert group.servers["1"].confirmed
    elif doing == "transfer":
        assert group["2"].is_leader
    leader = "2" if doing == "transfer" else "1"
    group.rest(leader)
    assert group.quiesced() == ["1", "2", "3"]


def test_follower_with_shorter_log_refuses_quiescence():
    group = Group()
    group.elect("1")
    offer = AppendEntries(
        sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 1), commit=1, quiesce=True
    )
    group.propose("1", "x")
    group.settle(lambda m: m.to != "2")  # 2 lacks the last entry
    group.network.clear()
    group.deliver(altered(offer, previous=OpId(1, 2), commit=2))
    assert not group["2"].quiesced
    assert not offered(group.network[-1])
    group.deliver(offer)
    assert group["2"].quiesced
    assert offered(group.network[-1])


def test_follower_with_longer_log_refuses_late_quiescence_offer():
    group = Group()
    group.elect("1")
    late = AppendEntries(
        sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 1), commit=1, quiesce=True
    )
    group.propose("1", "x")
    group.settle()
    group.beat()
    assert group["2"].status().applied == 2
    group.deliver(late)
    assert not group["2"].quiesced


def test_follower_with_unapplied_or_unwritten_entries_stays_active():
    group = Group()
    group.elect("1")
    group.servers["2"].disk.held = True
    group.propose("1", "x")
    group.settle()
    group.beat(times=IDLE + 3)
    assert group.quiesced() == []
    offer = AppendEntries(
        sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 2), commit=2, quiesce=True
    )
    group.deliver(offer)
    assert not group["2"].quiesced, "committed, but not durable on the follower"
    group.servers["2"].disk.held = False
    group.sync("2")
    group.settle()
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]


@pytest.mark.parametrize("lagging", [True, False])
def test_leader_with_pending_or_unwritten_entry_stays_active(lagging):
    group = Group()
    group.elect("1")
    if lagging:
        group.propose("1", "x")
        for _ in range(IDLE + 3):
            group.tick("1", 2)
            group.settle(lambda m: m.to != "3")
            group.network.clear()
    else:
        group.servers["1"].disk.held = True
        group.propose("1", "x")
        group.settle()
        group.beat(times=IDLE + 3)
        assert group["1"].commit_index == 2, "committed by the followers, not durable on the leader"
    assert group.quiesced() == []


def test_leader_in_transfer_stays_active():
    group = Group()
    group.elect("1")
    group["1"].transfer(TWO)
    group.network.clear()
    for _ in range(IDLE):
        group.tick("1", 2)
        group.settle(lambda m: type(m).__name__ != "TimeoutNow")
        assert not any(offered(m) for m in group.network)
    assert group.quiesced() == []


def test_leader_quiesces_only_after_every_follower_confirmed():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE - 1)
    for _ in range(5):  # the offers to 3 are lost
        group.tick("1", 2)
        lose_offers(group, "3")
        group.settle()
        assert group.quiesced() == ["2"]
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]


def test_late_quiescence_answers_do_not_wake_leader():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE)
    late = [
        AppendReply(sender=TWO, to=ONE, term=1, success=True, match=1, hint=OpId(1, 1), quiesce=q)
        for q in (True, False)
    ]
    group.rest()
    group.deliver(late[0])
    assert group.network == []
    assert group.quiesced() == ["1", "2", "3"]
    group.deliver(late[1])
    assert not group["1"].quiesced, "a member is active"
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]


def test_quiescence_answer_before_last_write_is_ignored():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE + 1)
    late = AppendReply(
        sender=THREE, to=ONE, term=1, success=True, match=1, hint=OpId(1, 1), quiesce=True
    )
    group.propose("1", "x")
    group.settle()
    group.beat(times=IDLE - 1)
    group.deliver(altered(late, hint=OpId(1, 2), match=2))  # answers to an outdated offer
    for _ in range(3):
        group.tick("1", 2)
        assert not group["1"].quiesced
        lose_offers(group, "3")
        group.deliver(late)
        group.settle()
    assert not group["1"].quiesced


def test_active_follower_is_detected_before_leader_quiesces():
    group = Group()
    group.elect("1")
    group.beat(times=IDLE)
    assert group.quiesced() == ["2", "3"]
    heartbeat = AppendEntries(sender=ONE, to=TWO, term=1, hlc=9, previous=OpId(1, 1), commit=1)
    group.deliver(heartbeat)  # late: it wakes 2, which answers that it is active
    group.settle()
    group.tick("1", 2)
    assert group.quiesced() == ["3"]
    group.rest()
    assert group.quiesced() == ["1", "2", "3"]
