"""Membership changes: the next configuration against a naive implementation, and changes of the leader."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import CasFailed, InvalidArgument, NotLeader, Unavailable
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.membership import Configuration, Member, initial
from nyala.raft.quorum import majority
from nyala.raft.reconfiguration.changes import Change, ChangeKind, edited
from nyala.raft.status import Role
from tests.unit.raft.support.raft_harness import Cluster, log_of

ADD, REMOVE, MODIFY = ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.MODIFY


def member(uuid, **attributes):
    return Member(ServerUuid(uuid), f"{uuid}:1", **attributes)


def cluster_with_leader(**kwargs):
    cluster = Cluster("123", spares="45", **kwargs)
    cluster.elect("1")
    return cluster


members = st.builds(member, st.sampled_from("abcdef"), voter=st.booleans(), electable=st.booleans())
configurations = (
    st.lists(members, min_size=1, max_size=6, unique_by=lambda m: m.uuid)
    .filter(lambda found: any(m.voter for m in found))
    .map(initial)
)
edits = st.lists(st.builds(Change, st.sampled_from(ChangeKind), members), max_size=4)


def reference(config, changes):
    """The next members, or None: one edit after the other on a list."""
    found = list(config.members)
    if not changes or len({c.member.uuid for c in changes}) < len(changes):
        return None
    for edit in changes:
        rest = [m for m in found if m.uuid != edit.member.uuid]
        if (len(rest) < len(found)) == (edit.kind is ADD):
            return None
        found = rest if edit.kind is REMOVE else [*rest, edit.member]
    before, after = set(config.voters), {m.uuid for m in found if m.voter}
    if len(before - after) + len(after - before) > 1:
        return None
    if not any(m.voter and m.electable for m in found):
        return None
    return sorted(found, key=lambda m: m.uuid)


@given(configurations, edits)
def test_configuration_change_applies_all_edits_or_none(config, changes):
    expected = reference(config, changes)
    if expected is None:
        with pytest.raises(InvalidArgument):
            edited(config, changes)
        return
    after = edited(config, changes)
    assert list(after.members) == expected
    together = len(set(config.voters) | set(after.voters))
    meet = majority(len(config.voters)) + majority(len(after.voters))
    assert meet > together, "any old and any new majority share a server"


def test_refused_change_states_reason_and_changes_nothing():
    cluster = cluster_with_leader()
    with pytest.raises(NotLeader) as not_leader:
        cluster.change("2", Change(ADD, member("4")))
    assert not_leader.value.leader == "1"
    with pytest.raises(CasFailed) as lost:
        cluster.change("1", Change(ADD, member("4")), expected=OpId(1, 7))
    assert lost.value.details == {"expected": "1.7", "found": str(NO_OP)}
    with pytest.raises(InvalidArgument, match="one change after the other"):
        cluster.change("1", Change(ADD, member("4")), Change(ADD, member("5")))
    assert log_of(cluster["1"]) == ["1.1"]
    assert cluster.change("1", Change(ADD, member("4")), expected=NO_OP) == OpId(1, 2)
    with pytest.raises(Unavailable, match=r"1\.2 is not committed"):
        cluster.change("1", Change(ADD, member("5")))


def test_promised_time_is_not_used_for_a_configuration():
    cluster = cluster_with_leader()
    cluster["1"].publish_closed(10_000)
    with pytest.raises(AssertionError, match="closed time"):
        cluster["1"].change_config([Change(ADD, member("4"))], 10_000)


@pytest.mark.row("S1.11", "S1.12")
def test_non_voter_is_added_by_an_entry_without_changing_majority():
    cluster = cluster_with_leader()
    op = cluster.change("1", Change(ADD, member("4", voter=False)))
    cluster.crash("3")
    cluster.settle()
    assert cluster["1"].commit_index == op.index, "1 and 2 are a majority of the three voters"
    cluster.heartbeat("1")
    assert cluster["4"].status().role is Role.LEARNER
    assert cluster["4"].status().config.id == op
    cluster.crash("2")
    cluster.propose("1", "x")
    cluster.settle()
    assert cluster["4"].last == cluster["1"].last
    assert cluster["1"].commit_index == op.index, "a non-voter's acknowledgement does not count"
    cluster.tick("4", 100)
    cluster.tick("1", 12)
    assert not cluster["1"].is_leader, "a leader steps down with answers of a non-voter only"
    assert cluster["4"].term == 1, "a non-voter never campaigns"


def test_log_is_kept_for_added_members_and_not_for_removed_ones():
    cluster = cluster_with_leader()
    for text in "abc":
        cluster.propose("1", text)
    cluster.settle()
    cluster.crash("3")
    cluster.propose("1", "d")
    cluster.settle()
    assert cluster["1"].view.retain_index == 5, "3 lacks 1.5"
    cluster.change("1", Change(REMOVE, member("3")))
    cluster.settle()
    assert cluster["1"].view.retain_index == 7
    cluster.servers["4"].alive = False
    cluster.change("1", Change(ADD, member("4", voter=False)))
    cluster.settle()
    assert cluster["1"].view.retain_index == 1, "4 may lack all entries"
    cluster.heartbeat("1")
    assert cluster["2"].view.retain_index == 1, "the next leader may need the entries too"
    cluster.servers["4"].alive = True
    for _ in range(3):
        cluster.heartbeat("1")
    assert cluster["1"].view.retain_index == cluster["1"].last.index + 1


@pytest.mark.row("S1.21")
def test_successor_is_responsive_and_has_longest_log():
    cluster = Cluster("12345")
    cluster.elect("1")
    cluster.crash("5")
    cluster.propose("1", "x")
    cluster.work(cluster.servers["1"])
    cluster.network = [m for m in cluster.network if m.to != "2"]
    cluster.settle()
    for _ in range(12):
        cluster.tick("1")
        cluster.settle(lambda m: "2" not in (m.to, m.sender))
    with pytest.raises(NotLeader) as going:
        cluster.change("1", Change(REMOVE, member("1")))
    assert going.value.details == {"reason": "STEPPING_DOWN", "leader": "3"}
    cluster.settle()
    assert cluster["3"].is_leader


@pytest.mark.parametrize("after", [{"voter": False}, {"electable": False}], ids=str)
def test_leader_ineligible_after_change_transfers_leadership(after):
    cluster = cluster_with_leader()
    with pytest.raises(NotLeader) as going:
        cluster.change("1", Change(MODIFY, member("1", **after)))
    assert going.value.details["reason"] == "STEPPING_DOWN"
    cluster.settle()
    assert cluster["2"].is_leader
    cluster.change("2", Change(MODIFY, member("1", **after)))
    cluster.settle()
    cluster.heartbeat("2")
    assert cluster["1"].status().config.get(ServerUuid("1")) == member("1", **after)


@pytest.mark.row("S1.25", "S1.26")
@pytest.mark.parametrize("removed", [True, False])
def test_returning_server_disrupts_neither_term_nor_leader_nor_writes(removed):
    cluster = Cluster("12345")
    cluster.elect("1")
    cut = {"5"}

    def run(ticks):
        for _ in range(ticks):
            for server in cluster.alive:
                cluster.tick(server.uuid)
            op = cluster.propose("1", "x")
            assert op is not None
            cluster.settle(lambda m: m.sender not in cut and m.to not in cut)
            assert cluster["1"].commit_index == op.index, "each write takes one round"

    if removed:
        cluster.change("1", Change(REMOVE, member("5")))
    run(100)
    cluster.network.clear()
    cut.clear()
    run(200)
    assert {cluster[u].term for u in "1234"} == {1}
    assert {cluster[u].leader for u in "1234"} == {"1"}
    assert (cluster["5"].last == cluster["1"].last) == (not removed)


@pytest.mark.row("S1.15")
def test_add_server_is_repeatable_after_any_outcome():
    cluster = cluster_with_leader()
    wanted = Change(ADD, member("4", voter=False))
    cluster.change(
        "1", wanted, expected=NO_OP
    )  # and its leader crashes before any member receives it
    cluster.network.clear()
    cluster.crash("1")
    cluster.elect("2")
    with pytest.raises(NotLeader):
        cluster.change("3", wanted, expected=NO_OP)
    op = cluster.change("2", wanted, expected=NO_OP)
    with pytest.raises(Unavailable):
        cluster.change("2", wanted, expected=NO_OP)
    cluster.settle()
    with pytest.raises(CasFailed):
        cluster.change("2", wanted, expected=NO_OP)
    with pytest.raises(InvalidArgument):
        cluster.change("2", wanted, expected=op)
    cluster.restart("1")
    cluster.heartbeat("2")
    cluster.heartbeat("2")
    assert [cluster[u].status().config.id for u in "1234"] == [op] * 4


def test_configurations_compare_by_members_and_id():
    one = Configuration((member("a"), member("b", voter=False)), OpId(1, 2))
    assert one.voters == ("a",)
    assert one == Configuration(one.members, OpId(1, 2))
    assert one != Configuration(one.members, OpId(1, 3))
