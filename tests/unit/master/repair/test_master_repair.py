"""The planner of repairs: the next steps of a group, by the health of its members."""

# mypy: disable-error-code="arg-type, return-value"
# Servers are named by plain strings here.

from dataclasses import replace

import pytest

from nyala.master.catalog.group_state import (
    Add,
    Copy,
    MakeWitness,
    Modify,
    Remove,
    ReplicaState,
    TargetServers,
)
from nyala.master.repair.next_steps import IN_PLACE, next_steps
from tests.unit.master.support.repair_groups import (
    FAILED,
    SILENT,
    UNRECOVERABLE,
    healthy,
    in_place,
    made,
    steps,
    tablet,
)


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
