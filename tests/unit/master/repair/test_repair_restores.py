"""The planner of repairs: from any state that a majority survives, step by step, to the full number."""

# mypy: disable-error-code="arg-type, return-value"
# Servers are named by plain strings here.
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.master.catalog.group_state import GroupState, ReplicaState, TargetServers
from nyala.master.repair.next_steps import next_steps
from tests.unit.master.support.repair_groups import FAILED, HEALTHY, SILENT, UNRECOVERABLE, Group

STEPS = 40


NO_SERVERS = TargetServers(lambda _instead: None)


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
