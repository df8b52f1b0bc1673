"""Roles and their transitions: those of the design and the departures named in docs/internals/raft.md."""

import itertools
from collections import Counter
from typing import Any

import pytest

from nyala.common.ids import ServerUuid
from nyala.raft import state
from nyala.raft.membership import Member, initial
from nyala.raft.messages import HardState
from nyala.raft.node import RaftNode
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.raft.state import RaftCore, RaftState
from nyala.raft.status import ROLE_TRANSITIONS, Role
from tests.unit.raft.support import raft_random
from tests.unit.raft.support.raft_harness import Cluster

SEED_004 = {
    "NON_PARTICIPANT LEARNER", "NON_PARTICIPANT FOLLOWER", "LEARNER FOLLOWER", "FOLLOWER CANDIDATE",
    "CANDIDATE LEADER", "CANDIDATE FOLLOWER", "LEADER FOLLOWER", "FOLLOWER NON_PARTICIPANT",
    "LEARNER NON_PARTICIPANT", "CANDIDATE NON_PARTICIPANT", "LEADER NON_PARTICIPANT",
}  # fmt: skip
BY_WAY_OF_FOLLOWER = {"CANDIDATE NON_PARTICIPANT", "LEADER NON_PARTICIPANT"}
DEMOTION = {"FOLLOWER LEARNER"}
BECOME = {
    RaftState.FOLLOWER: lambda core: core.become_follower(core.term, None),
    RaftState.PRE_CANDIDATE: RaftCore.become_pre_candidate,
    RaftState.CANDIDATE: RaftCore.become_candidate,
    RaftState.LEADER: lambda core: core.become_leader(None),
}


def node():
    config = initial(Member(ServerUuid(u), u) for u in "123")
    return RaftNode(ServerUuid("1"), config, HardState(), random=lambda n: 0)


@pytest.mark.row("S4.33")
def test_role_transitions_equal_design_and_documented_exceptions():
    known = {f"{a} {b}" for a, b in ROLE_TRANSITIONS}
    assert known == (SEED_004 - BY_WAY_OF_FOLLOWER) | DEMOTION


@pytest.mark.row("S4.32", "S4.33")
def test_every_listed_transition_occurs_and_no_other(monkeypatch):
    """Groups under loss, crashes, membership changes: each change of a role is recorded."""
    seen, assigned = set(), Counter[RaftCore]()
    slot: Any = vars(RaftCore)["role"]

    def record(core, role):
        assigned[core] += 1
        if assigned[core] > 2:  # the first is the default, the second is recovered
            seen.add((core.role, role))
        slot.__set__(core, role)

    monkeypatch.setattr(RaftCore, "role", property(slot.__get__, record))
    for seed in range(200, 206):
        raft_random.RandomRun(seed).run()
    cluster = Cluster("123", spares="4")
    cluster.elect("1")
    for kind, voter in (
        (ChangeKind.ADD, False), (ChangeKind.MODIFY, True), (ChangeKind.MODIFY, False),
        (ChangeKind.MODIFY, True), (ChangeKind.REMOVE, True), (ChangeKind.ADD, True),
    ):  # fmt: skip
        cluster.change("1", Change(kind, Member(ServerUuid("4"), "4:1", voter=voter)))
        for _ in range(3):
            cluster.heartbeat("1")
    for voter in (True, False):
        _roll_back_an_addition(voter=voter)
    assert seen == ROLE_TRANSITIONS, seen ^ ROLE_TRANSITIONS


def _roll_back_an_addition(*, voter):
    """Only 4 receives its addition; the next leader, without that entry, adds 4 again."""
    cluster = Cluster("123", spares="4")
    cluster.elect("1")
    addition = Change(ChangeKind.ADD, Member(ServerUuid("4"), "4:1", voter=voter))
    cluster.change("1", addition)
    cluster.settle(lambda m: m.to == "4" or m.sender == "4")
    cluster.crash("1")
    cluster.network.clear()
    cluster.elect("2")
    cluster.change("2", addition)
    cluster.settle()
    assert cluster["4"].status().config.id.term == 2


@pytest.mark.row("S4.33")
@pytest.mark.parametrize(
    ("before", "after"),
    [p for p in itertools.product(Role, Role) if p[0] is not p[1] and p not in ROLE_TRANSITIONS],
    ids=str,
)
def test_other_role_transitions_raise_invariant_error(before, after, monkeypatch):
    core = node().core
    core.role = before
    monkeypatch.setattr(state.RaftCore, "role_now", lambda _: after)
    with pytest.raises(AssertionError, match=f"{before} -> {after}"):
        core.become_follower(core.term, None)


@pytest.mark.parametrize(
    ("before", "after"),
    [p for p in itertools.product(RaftState, RaftState) if p not in state.TRANSITIONS],
    ids=str,
)
def test_other_state_transitions_raise_invariant_error(before, after):
    core = node().core
    core.state = before
    with pytest.raises(AssertionError, match=f"{before} -> {after}"):
        BECOME[after](core)
    assert core.state is before


@pytest.mark.row("S4.27")
@pytest.mark.parametrize(("size", "faults"), [(1, 0), (3, 1), (5, 2)])
def test_group_of_2f_plus_1_members_tolerates_f_faults(size, faults):
    names = "12345"[:size]
    cluster = Cluster(names)
    cluster.elect("1")
    for uuid in names[size - faults :]:
        cluster.crash(uuid)
    op = cluster.propose("1", "x")
    cluster.settle()
    assert op is not None
    assert cluster["1"].commit_index == op.index
    if size == 1:
        return
    cluster.crash(names[size - faults - 1] if size - faults - 1 else "1")
    cluster.propose("1", "y")
    cluster.settle()
    assert cluster["1"].commit_index == op.index


@pytest.mark.row("S4.28")
def test_server_has_separate_role_in_each_group():
    groups = [
        Cluster("123"),
        Cluster("124"),
        Cluster("23", nonvoters="1"),
        Cluster("345", spares="1"),
    ]
    for group, leader in zip(groups, "1223", strict=True):
        group.elect(leader)
        group.propose(leader, "x")
        group.settle()
    roles = [group["1"].status().role for group in groups]
    assert roles == [Role.LEADER, Role.FOLLOWER, Role.LEARNER, Role.NON_PARTICIPANT]
    assert [len(group.servers["1"].applied) for group in groups] == [2, 1, 1, 0]


@pytest.mark.row("S4.39")
def test_leader_failing_before_replication_is_replaced_by_one_that_replicates():
    cluster = Cluster("123")
    cluster["2"].core.ticks_since_leader = cluster["3"].core.ticks_since_leader = 99
    while not cluster["1"].is_leader:
        cluster.tick("1")
        cluster.settle(lambda m: type(m).__name__ != "AppendEntries")
    cluster.crash("1")  # no member has its entry
    cluster.network.clear()
    for _ in range(6 * cluster.options.election_ticks):
        for server in cluster.alive:
            cluster.tick(server.uuid)
        cluster.settle()
    (leader,) = [s for s in cluster.alive if s.node.is_leader]
    assert leader.node.status().accepting
    assert leader.node.term > 1
    assert [e.id.term for e in leader.applied] == [leader.node.term]
