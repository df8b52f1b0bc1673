"""Promotion by rounds (dissertation 4.2.1): members that have caught up, and those never promoted."""

import pytest

from nyala.common.ids import ServerUuid
from nyala.raft.membership import Member
from nyala.raft.messages import AppendEntries
from nyala.raft.options import RaftOptions
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.status import Role
from tests.unit.raft.support.raft_harness import Cluster

TICKS = RaftOptions().election_ticks


def learner(uuid, **attributes):
    return Member(ServerUuid(uuid), f"{uuid}:1", voter=False, promote=True, **attributes)


def voters(cluster):
    return "".join(cluster["1"].status().config.voters)


def cluster_with(*members):
    cluster = Cluster("123", spares="45")
    cluster.elect("1")
    cluster.change("1", *(Change(ChangeKind.ADD, m) for m in members))
    cluster.settle()
    return cluster


@pytest.mark.row("S1.13")
@pytest.mark.parametrize("delay", [TICKS - 3, TICKS + 3])
def test_non_voter_lagging_by_election_timeout_under_load_is_not_promoted(delay):
    """4 answers `delay` ticks late, for ever; writes never stop."""
    cluster = cluster_with(learner("4"))
    late = []
    for now in range(8 * delay):
        cluster.propose("1", "x")
        cluster.tick("1")
        for uuid in "23":
            cluster.tick(uuid)
        cluster.settle(lambda m: "4" not in (m.to, m.sender))
        late += [(now + delay, m) for m in cluster.network if m.to == "4"]
        cluster.network.clear()
        for message in [m for due, m in late if due == now]:
            cluster.deliver(message)
        cluster.settle(lambda m: m.to != "4")
        late += [(now + delay, m) for m in cluster.network if m.to == "4"]
        cluster.network.clear()
    assert cluster["4"].last.index > 2 * delay, "4 receives entries late"
    assert voters(cluster) == ("1234" if delay <= TICKS else "123")


def test_silent_non_voter_with_complete_log_is_not_promoted():
    cluster = cluster_with(learner("4"))
    cluster.servers["4"].alive = False
    cluster.tick("1", 1)
    cluster["1"].core.leadership.peers["4"].last_reply_at -= TICKS
    for _ in range(2 * TICKS):
        cluster.tick("1")
        cluster.settle()
    assert voters(cluster) == "123"
    cluster.servers["4"].alive = True
    cluster.heartbeat("1")
    cluster.heartbeat("1")
    assert voters(cluster) == "1234"


@pytest.mark.row("S1.12")
def test_non_voter_without_promote_flag_is_not_promoted():
    cluster = cluster_with(Member(ServerUuid("4"), "4:1", voter=False))
    for _ in range(3 * TICKS):
        cluster.heartbeat("1")
    assert voters(cluster) == "123"


def test_promotion_keeps_all_attributes_except_promote():
    cluster = cluster_with(learner("4", electable=False, address="public"))
    for _ in range(3):
        cluster.heartbeat("1")
    member = cluster["4"].status().config.get(ServerUuid("4"))
    assert member == Member(ServerUuid("4"), "4:1", "public", electable=False)
    assert cluster["4"].status().role is Role.FOLLOWER


def test_promotion_waits_for_leader_commit_in_its_term():
    cluster = cluster_with(learner("4"))
    cluster.crash("1")
    cluster["3"].core.ticks_since_leader = TICKS
    while not cluster["2"].is_leader:
        cluster.tick("2")
        cluster.settle(lambda m: not isinstance(m, AppendEntries))
    for _ in range(5):  # 3 would be enough to commit; only 4 answers
        cluster.tick("2")
        cluster.network = [m for m in cluster.network if m.to != "3"]
        cluster.settle()
    assert cluster["2"].core.leadership.peers["4"].match == cluster["2"].last.index
    assert cluster["2"].status().config.voters == ("1", "2", "3")
    for _ in range(3):
        cluster.heartbeat("2")
    assert cluster["2"].status().config.voters == ("1", "2", "3", "4")


def test_promotion_timestamp_is_above_all_promised_times():
    cluster = cluster_with(learner("4"))
    cluster["1"].publish_closed(50_000)
    for _ in range(3):
        cluster.heartbeat("1")
    assert voters(cluster) == "1234"
    promotion = cluster.servers["1"].applied[-1]
    assert promotion.stamp > 50_000
