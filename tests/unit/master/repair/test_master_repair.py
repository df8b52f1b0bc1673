"""The planner of repairs: from any state that a majority survives, step by step, to the full number."""

# mypy: disable-error-code="arg-type, return-value"
# Servers are named by plain strings here.

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.master.catalog.group_state import (
    Add,
    Copy,
    GroupState,
    MakeWitness,
    Modify,
    Remove,
    ReplicaHealth,
    ReplicaState,
    TargetServers,
)
from nyala.master.repair.next_steps import IN_PLACE, next_steps

HEALTHY, SILENT, FAILED = ReplicaHealth.HEALTHY, ReplicaHealth.SILENT, ReplicaHealth.FAILED
UNRECOVERABLE = ReplicaHealth.UNRECOVERABLE
STEPS = 40


NO_SERVERS = TargetServers(lambda _instead: None)


def tablet(*members, replicas=3, leader="a", witness_first=False):
    return GroupState(leader, replicas, tuple(members), witness_first)


def healthy(name, **more):
    return ReplicaState(name, **more)


def steps(*members, spare="x", **more):
    return next_steps(tablet(*members, **more), TargetServers(lambda _: spare, lambda: spare))


class Group:
    """A group that executes orders: its leader commits with a majority, and promotes complete members."""

    def __init__(self, situation, spare=12):
        self.situation = situation
        self.spare = [f"spare-{n}" for n in range(spare)]

    @property
    def voters(self):
        return [s for s in self.situation.members if s.voter]

    @property
    def answering(self):
        return [s for s in self.voters if s.health is HEALTHY]

    def put(self, members):
        self.situation = replace(self.situation, members=tuple(members))

    def step(self, step):
        members = list(self.situation.members)
        if isinstance(step, Add):
            assert step.server not in [s.uuid for s in members]
            members.append(ReplicaState(step.server, voter=False, promote=not step.witness,
                              electable=not step.witness, holds=False))  # fmt: skip
        elif isinstance(step, Remove):
            if step.in_place:
                self.check_in_place(step.server)
                self.spare.append(step.server)
            self.remove(step.server)
            return
        elif isinstance(step, Modify):
            member = next(s for s in members if s.uuid == step.server)
            assert step.electable or not member.is_data_voter, "a voter with data becomes a witness"
            assert not (step.voter and step.electable) or not member.log_only, "a leader has data"
            made = replace(member, voter=step.voter, promote=step.promote, replace=step.replace,
                           electable=step.electable)  # fmt: skip
            members = [made if s is member else s for s in members]
        else:
            log = isinstance(step, MakeWitness)
            members = [
                replace(s, holds=True, log_only=log) if s.uuid == step.server else s
                for s in members
            ]
        self.put(members)

    def check_in_place(self, server):
        member = next(s for s in self.situation.members if s.uuid == server)
        assert member.health is UNRECOVERABLE
        assert not self.spare, "another server can get the replica"
        others = [s for s in self.answering if s is not member]
        assert 2 * len(others) > len(self.voters), "the others are no majority of all voters"
        assert [s for s in others if s.electable], "the only member with data stays"

    @property
    def data(self):
        """Voters that answer and have the data."""
        return [s for s in self.answering if s.electable]

    def remove(self, server):
        if server == self.situation.leader:
            others = [s for s in self.data if s.uuid != server]
            assert others, "a leader without a successor is removed"
            self.situation = replace(self.situation, leader=others[0].uuid)
            return  # leadership was transferred; the removal is derived again
        self.put(s for s in self.situation.members if s.uuid != server)

    def promote(self):
        members = list(self.situation.members)
        for n, member in enumerate(members):
            ready = member.promote and member.holds and member.health is HEALTHY
            if ready and not member.voter and member.electable:
                members[n] = replace(member, voter=True, promote=False)
                self.put(members)
                return

    def look(self):
        servers = TargetServers(lambda _: self.spare.pop(0) if self.spare else None,
                          lambda: self.spare.pop(0) if self.spare else None,
                          in_place=lambda _: not self.spare)  # fmt: skip
        found = next_steps(self.situation, servers)
        changes = [s for s in found if not isinstance(s, Copy | MakeWitness)]
        assert len(changes) <= 1
        for step in found:
            before = len(self.data)
            self.step(step)
            assert 2 * len(self.answering) > len(self.voters), self.situation
            assert len(self.data) >= min(before, self.situation.replicas), (
                "a healthy replica was removed"
            )
        if not found:
            self.promote()
        return found


HEALTHS = st.sampled_from([HEALTHY, HEALTHY, HEALTHY, SILENT, FAILED, UNRECOVERABLE])
VOTER = st.builds(lambda health, going: ReplicaState("?", health=health, replace=going), HEALTHS,
                  st.booleans() | st.just(False))  # fmt: skip
LEARNER = st.builds(
    lambda health, holds: ReplicaState("?", voter=False, promote=True, health=health, holds=holds),
    HEALTHS, st.booleans(),
)  # fmt: skip


WITNESS = st.builds(
    lambda health, voter, promote, holds: ReplicaState(
        "?", voter=voter, promote=promote and voter, electable=False, health=health, holds=holds or voter,
        log_only=holds or voter),
    HEALTHS, st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
PARKED = st.builds(
    lambda health: ReplicaState("?", voter=False, replace=True, health=health), HEALTHS
)


@st.composite
def situations(draw):
    members = [ReplicaState("?", replace=draw(st.booleans()))]
    members += draw(st.lists(VOTER, max_size=6)) + draw(st.lists(LEARNER, max_size=3))
    members += draw(st.lists(WITNESS, max_size=2)) + draw(st.lists(PARKED, max_size=1))
    members = [replace(s, uuid=f"s{n}") for n, s in enumerate(members)]
    wanted, first = draw(st.sampled_from([1, 3, 5])), draw(st.booleans())
    return GroupState("s0", wanted, tuple(members), witness_first=first)


@settings(max_examples=150, deadline=None)
@given(situations(), st.data())
def test_repair_steps_from_any_state_with_majority_restore_full_replication(situation, data):
    """Silent members return or are replaced; a majority remains in every state."""
    group = Group(situation)
    if 2 * len(group.answering) <= len(group.voters):
        assert next_steps(situation, NO_SERVERS) == []
        return
    for _ in range(STEPS):
        if not group.look() and group.situation.fully_replicated:
            break
        silent = [n for n, s in enumerate(group.situation.members) if s.health is SILENT]
        if silent and data.draw(st.booleans()):
            members = list(group.situation.members)
            members[silent[0]] = replace(members[silent[0]], health=HEALTHY)
            group.put(members)
    else:
        for _ in range(STEPS):
            group.put(replace(s, health=FAILED if s.health is SILENT else s.health)
                      for s in group.situation.members)  # fmt: skip
            group.look()
    assert group.situation.fully_replicated, group.situation
    assert group.look() == [], "no further step in a healthy group"


@pytest.mark.parametrize("size", [5, 7])
@pytest.mark.parametrize("witness_first", [False, True])
def test_all_failed_members_of_a_group_without_other_servers_are_replaced(size, witness_first):
    """Also the one whose vote a witness has got in the meantime."""
    lost = size // 2
    members = [ReplicaState(f"s{n}") for n in range(size - lost)]
    members += [ReplicaState(f"s{n}", health=UNRECOVERABLE) for n in range(size - lost, size)]
    group = Group(GroupState("s0", size, tuple(members), witness_first=witness_first), spare=0)
    for _ in range(STEPS):
        group.look()
    assert group.situation.fully_replicated, group.situation
    assert {s.uuid for s in group.situation.members} == {s.uuid for s in members}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([1, 3, 5, 7]), st.lists(HEALTHS, min_size=6, max_size=6), st.data())
def test_group_without_other_servers_regains_all_replicas_on_the_same_servers(size, drawn, data):
    """With as many servers as replicas, each member becomes healthy if failed ones are unrecoverable."""
    healths = [HEALTHY, *(UNRECOVERABLE if h is FAILED else h for h in drawn)][:size]
    members = [ReplicaState(f"s{n}", health=h) for n, h in enumerate(healths)]
    situation = GroupState("s0", size, tuple(members), witness_first=data.draw(st.booleans()))
    group = Group(situation, spare=0)
    if 2 * len(group.answering) <= len(group.voters):
        assert group.look() == []
        return
    for _ in range(STEPS):
        if not group.look() and group.situation.fully_replicated:
            break
        silent = [s.uuid for s in group.situation.members if s.health is SILENT]
        if silent and data.draw(st.booleans()):
            back = {silent[0]: data.draw(st.sampled_from([HEALTHY, UNRECOVERABLE]))}
            if back[silent[0]] is HEALTHY or len(group.answering) > len(group.voters) // 2:
                group.put(replace(s, health=back.get(s.uuid, s.health))
                          for s in group.situation.members)  # fmt: skip
    group.put(
        replace(s, health=HEALTHY if s.health is SILENT else s.health)
        for s in group.situation.members
    )
    for _ in range(STEPS):
        group.look()
    assert group.situation.fully_replicated, group.situation
    assert {s.uuid for s in group.situation.members} == {s.uuid for s in members}


def in_place(*members, **more):
    """Steps if only a member's own server can take a replica."""
    servers = TargetServers(lambda _: None, in_place=lambda _: True)
    return next_steps(tablet(*members, **more), servers)


def test_unrecoverable_voter_is_replaced_in_place_only_without_other_server():
    ok, lost = [healthy("a"), healthy("b")], healthy("c", health=UNRECOVERABLE)
    assert steps(*ok, lost) == [Add("x")]
    assert steps(*ok, lost, spare=None) == [], "its own server cannot take a replica either"
    assert in_place(*ok, lost) == [Remove("c", IN_PLACE, in_place=True)]
    assert in_place(*ok, replace(lost, health=FAILED)) == [], "the member may return"
    assert in_place(*ok, replace(lost, replace=True)) == [], (
        "the member is to be moved to another server"
    )
    assert in_place(healthy("a"), healthy("b", health=SILENT), lost) == [], "no majority"
    assert steps(*ok, lost, healthy("x")) == [Remove("c", "it has failed")]
    assert steps(*ok) == [Add("x")], "a removed member is added again"


def test_two_unrecoverable_voters_of_five_are_replaced_in_place_one_after_the_other():
    ok = [healthy("a"), healthy("b"), healthy("c")]
    lost = [healthy("d", health=UNRECOVERABLE), healthy("e", health=UNRECOVERABLE)]
    assert in_place(*ok, *lost, replicas=5) == [Remove("d", IN_PLACE, in_place=True)]
    coming = ReplicaState("d", voter=False, promote=True, holds=False)
    assert in_place(*ok, lost[1], coming, replicas=5) == [
        Remove("e", IN_PLACE, in_place=True),
        Copy("d"),
    ]


def test_witness_gets_the_data_instead_of_replacement_in_place():
    ok, lost = [healthy("a"), healthy("b")], healthy("c", health=UNRECOVERABLE)
    log = ReplicaState("w", voter=False, electable=False, log_only=True)
    assert in_place(*ok, lost, log, witness_first=True) == [
        made("w", "it has a log", electable=False)
    ]
    witness = replace(log, voter=True)
    assert in_place(*ok, replace(lost, voter=False, replace=True), witness) == [
        made("w", "it is to get the data", promote=True, electable=False)
    ]


def test_lost_voter_is_removed_only_after_another_voter_is_added():
    lost = healthy("c", health=FAILED)
    assert steps(healthy("a"), healthy("b"), lost) == [Add("x")]
    coming = ReplicaState("x", voter=False, promote=True, holds=False)
    assert steps(healthy("a"), healthy("b"), lost, coming) == [Copy("x")]
    assert steps(healthy("a"), healthy("b"), lost, replace(coming, holds=True)) == []
    assert steps(healthy("a"), healthy("b"), lost, healthy("x")) == [Remove("c", "it has failed")]


def test_silent_voter_is_not_replaced_before_timeout():
    assert steps(healthy("a"), healthy("b"), healthy("c", health=SILENT)) == []
    assert steps(healthy("a"), healthy("b"), healthy("c"), healthy("d", health=SILENT)) == []


@pytest.mark.parametrize("holds", [False, True])
def test_returning_voter_is_kept_and_its_replacement_removed(holds):
    coming = ReplicaState("x", voter=False, promote=True, holds=holds)
    assert steps(healthy("a"), healthy("b"), healthy("c"), coming) == [
        Remove("x", "it is not needed any more")
    ]


def test_failed_replacement_is_removed_and_another_server_chosen():
    failed = ReplicaState("x", voter=False, promote=True, holds=False, health=FAILED)
    lost = healthy("c", health=FAILED)
    assert steps(healthy("a"), healthy("b"), lost, failed) == [
        Remove("x", "it was to become a replica, and has failed")
    ]


def test_two_lost_voters_of_five_get_separate_replacements():
    members = [
        healthy("a"),
        healthy("b"),
        healthy("c"),
        healthy("d", health=FAILED),
        healthy("e", health=FAILED),
    ]
    asked = []

    def choose(instead):
        asked.append(instead)
        return f"for-{instead}"

    assert next_steps(tablet(*members, replicas=5), TargetServers(choose)) == [Add("for-d")]
    members.append(ReplicaState("for-d", voter=False, promote=True, holds=False))
    assert next_steps(tablet(*members, replicas=5), TargetServers(choose)) == [
        Add("for-e"),
        Copy("for-d"),
    ]
    assert asked == ["d", "e"]


def test_repair_without_majority_sends_no_order():
    lost = [healthy("b", health=FAILED), healthy("c", health=FAILED)]
    assert steps(healthy("a"), *lost) == []


def test_replication_factor_change_adds_or_removes_voters_with_leader_removed_last():
    three = [healthy("a", load=9), healthy("b", load=5), healthy("c", load=7)]
    assert steps(*three, replicas=5) == [Add("x")]
    more = [*three, healthy("d", load=1), healthy("e", load=2)]
    why = "there are 5 replicas where 3 are wanted"
    assert steps(*more) == [Remove("c", why)]
    crowded = [replace(s, location="r1" if s.uuid in "de" else s.uuid) for s in more]
    assert steps(*crowded) == [Remove("e", why)], "a member in a shared location is removed first"
    assert steps(*three, replicas=1)[0].server == "c"
    assert steps(healthy("a"), healthy("b"), replicas=1)[0].server == "b"


def test_voter_marked_for_replacement_is_removed_after_another_voter_is_added():
    marked = healthy("a", replace=True)
    assert steps(marked, healthy("b"), healthy("c")) == [Add("x")]
    assert steps(marked, healthy("b"), healthy("c"), healthy("x")) == [
        Remove("a", "it was to be replaced")
    ]


def test_non_voter_without_promote_flag_is_left_to_the_operator():
    assert steps(healthy("a"), healthy("b"), healthy("c"), ReplicaState("o", voter=False)) == []
    assert (
        steps(
            healthy("a"), healthy("b"), healthy("c"), ReplicaState("o", voter=False, health=FAILED)
        )
        == []
    )


def test_repair_without_eligible_server_adds_nothing():
    assert steps(healthy("a"), healthy("b"), healthy("c", health=FAILED), spare=None) == []


def made(name, why, **more):
    """Steps for a lost member and for a witness."""
    fields = {"voter": True, "promote": False, "replace": False, "electable": True, **more}
    return Modify(name, why=why, **fields)


@pytest.mark.row("S1.49", "S1.51")
def test_witness_option_adds_witness_first_and_data_later():
    ok, lost = [healthy("a"), healthy("b")], healthy("c", health=FAILED)
    first = {"witness_first": True}
    assert steps(*ok, lost, **first) == [Add("x", witness=True)]
    fresh = ReplicaState("x", voter=False, electable=False, holds=False)
    assert steps(*ok, lost, fresh, **first) == [MakeWitness("x")]
    log = replace(fresh, holds=True, log_only=True)
    votes = made("x", "it has a log", electable=False)
    assert steps(*ok, lost, log, **first) == [votes]
    witness = replace(log, voter=True)
    assert steps(*ok, lost, witness, **first) == [
        made("c", "a witness votes in its place", voter=False, replace=True)
    ]
    parked = replace(lost, voter=False, replace=True)
    fill = made("x", "it is to get the data", promote=True, electable=False)
    assert steps(*ok, parked, witness, **first) == [fill]
    filling = replace(witness, promote=True)
    assert steps(*ok, parked, filling, **first) == [Copy("x")]
    full = made("x", "it has the data")
    assert steps(*ok, parked, replace(filling, log_only=False), **first) == [full]
    assert steps(*ok, parked, healthy("x"), **first) == [Remove("c", "another one has its place")]


@pytest.mark.row("S1.50")
def test_voter_returning_before_witness_has_data_is_kept_and_witness_removed():
    ok, back = [healthy("a"), healthy("b")], ReplicaState("c", voter=False, replace=True)
    witness = ReplicaState("x", electable=False, promote=True, log_only=True)
    again = made("c", "it is back", voter=False, promote=True)
    assert steps(*ok, back, witness, witness_first=True)[0] == again
    coming = replace(back, replace=False, promote=True)
    assert steps(*ok, coming, witness, witness_first=True) == [Copy("x")]
    removal = Remove("x", "a witness is not needed any more")
    assert steps(*ok, healthy("c"), witness, witness_first=True) == [removal]


def test_witness_is_removed_before_replicas_with_data():
    witness = ReplicaState("w", electable=False, log_only=True)
    assert steps(healthy("a"), healthy("b"), healthy("c", load=9), witness) == [
        Remove("w", "a witness is not needed any more")
    ]
    assert steps(healthy("a"), healthy("b"), witness)[0].server == "w", (
        "a witness gets data: two replicas are too few"
    )
    alone = steps(healthy("a"), witness, ReplicaState("v", electable=False, log_only=True))
    assert [s.promote for s in alone] == [True], "the only member with data stays"
    assert steps(healthy("a"), healthy("b", health=FAILED), witness, replicas=1) == [
        Remove("b", "it has failed")
    ]
    failed = replace(witness, health=FAILED)
    assert steps(healthy("a"), healthy("b"), healthy("c"), failed)[0].server == "w"


def test_repair_without_server_for_witness_adds_a_replica():
    lost = healthy("c", health=FAILED)
    found = next_steps(
        tablet(healthy("a"), healthy("b"), lost, witness_first=True), TargetServers(lambda _: "x")
    )
    assert found == [Add("x")]


def test_voter_is_not_removed_while_the_others_lack_a_majority():
    members = [healthy("a"), healthy("b", replace=True), healthy("c", health=SILENT)]
    assert steps(*members, replicas=1) == []
    assert steps(healthy("a"), members[1], healthy("c"), replicas=1)[0].server == "b"


def test_joining_member_without_data_is_the_one_that_is_not_needed():
    joining = [
        ReplicaState(n, voter=False, promote=True, holds=held)
        for n, held in (("d", True), ("e", False))
    ]
    found = steps(healthy("a"), healthy("b"), healthy("c"), *joining, replicas=4)
    assert [(type(s), s.server) for s in found] == [(Remove, "e")]


DEMOTED = ReplicaState("c", voter=False, replace=True)
LOG = ReplicaState("w", electable=False, log_only=True)


@pytest.mark.parametrize("may_fill", [False, True])
def test_witness_gets_the_data_only_if_its_server_may_get_one_more_copy(may_fill):
    group = tablet(healthy("a"), healthy("b"), replace(DEMOTED, health=FAILED), LOG)
    servers = TargetServers(lambda _: None, lambda: None, lambda _: may_fill)
    promoted = [s.server for s in next_steps(group, servers) if isinstance(s, Modify)]
    assert promoted == ["w"] * may_fill


def test_member_that_is_back_gets_its_vote_unless_another_one_is_joining():
    joining = ReplicaState("d", voter=False, promote=True, holds=False)
    back = [s.server for s in steps(healthy("a"), healthy("b"), DEMOTED, LOG)]
    assert back == ["c"]
    beside = steps(healthy("a"), healthy("b"), DEMOTED, LOG, joining)
    assert "c" not in [s.server for s in beside]
