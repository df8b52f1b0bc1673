"""A server removed by an unsafe change is added again while it still has its old replica.

It may have committed entries that no other member has; it must detect that and fail, without following or
voting.
"""

import pytest

from nyala.common.errors import Forbidden
from nyala.common.ids import OpId, ServerUuid
from nyala.raft.membership import Member
from nyala.raft.messages import AppendEntries
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from tests.unit.raft.support.raft_harness import Cluster, log_of

APART = 100
"""Distance that the tool keeps between the terms of lost members and that of an unsafe change."""


FLUSHED, CUT_OFF, CRASHED = "flushed", "cut off", "crashed"


def surviving_config(more: int, how: str, followed: int) -> Cluster:
    """Member 3 continues alone without `more` entries committed by 1 and 2; 1 returns with its old state.

    Args:
        more: number of such entries.
        how: FLUSHED: its files contain them, and its log begins after them; CUT_OFF: it kept running;
            CRASHED: they are in its log, not known to be committed.
        followed: number of entries of 3 since then.
    """
    cluster = Cluster("123")
    cluster.elect("1")
    cluster.propose("1", "a")
    cluster.settle()
    cluster.heartbeat("1")
    cluster.crash("3")
    for number in range(more):
        cluster.propose("1", f"only the dead had {number}")
        cluster.settle()
    cluster.heartbeat("1")
    assert cluster["1"].status().commit == 2 + more
    if how is FLUSHED:
        disk = cluster.servers["1"].disk
        cluster.flush("1")
        disk.base, disk.base_stamp = cluster["1"].last, cluster["1"].last_stamp
        disk.collected = disk.base.index
        disk.log.clear()
    if how is CUT_OFF:
        cluster.servers["1"].alive = False
    else:
        cluster.crash("1")
    cluster.crash("2")
    cluster.network.clear()
    cluster.restart("3")
    cluster.unsafe_config("3", [ServerUuid("3")], cluster["3"].term + APART)
    cluster.tick("3", 40)
    for number in range(followed):
        cluster.propose("3", f"goes on {number}")
    cluster.settle()
    assert cluster["3"].is_leader
    if how is CUT_OFF:
        cluster.servers["1"].alive = True
    else:
        cluster.restart("1")
    return cluster


def add(cluster: Cluster) -> None:
    member = Member(ServerUuid("1"), "1:1", voter=False, promote=True)
    cluster.change("3", Change(ChangeKind.ADD, member))
    for _ in range(20):
        cluster.heartbeat("3")


@pytest.mark.row("S1.42")
@pytest.mark.parametrize("how", [FLUSHED, CUT_OFF])
@pytest.mark.parametrize("more", [1, 3, 9])
@pytest.mark.parametrize("followed", [0, 2, 20])
def test_former_committer_of_lost_entries_fails_instead_of_following(how, more, followed):
    cluster = surviving_config(more, how, followed)
    held = cluster["1"].last
    with pytest.raises(Forbidden, match="delete it and let the group copy it again"):
        add(cluster)
    assert cluster["1"].last == held, "entries after a diverging one are refused"
    assert cluster["3"].core.configs.active.voters == ("3",)


@pytest.mark.parametrize(("how", "more"), [(FLUSHED, 0), (CUT_OFF, 0), (CRASHED, 3)])
def test_member_without_lost_committed_entries_continues(how, more):
    cluster = surviving_config(more, how, 5)
    add(cluster)
    assert log_of(cluster["3"])[-8:] == log_of(cluster["1"])[-8:]
    assert cluster["3"].core.configs.active.voters == ("1", "3")


@pytest.mark.parametrize("how", [FLUSHED, CUT_OFF])
def test_log_conflicting_with_committed_entries_is_refused(how):
    node = surviving_config(3, how, 0)["1"]
    for index in (2, 3, 4, 5, 6):
        message = AppendEntries(
            sender=ServerUuid("2"), to=ServerUuid("1"), term=9, hlc=1, previous=OpId(7, index)
        )
        if index >= 5:
            node.step(message, 1)  # it answers with what it has: the leader may have that too
        else:
            with pytest.raises(Forbidden):
                node.step(message, 1)
        assert (node.core.log.committed, node.last.index) == (5, 5)
