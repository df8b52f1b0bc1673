"""The planner of repairs: from any state that a majority survives, step by step, to the full number."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.master import repair
from nyala.master.repair import Health

next_steps: Any = repair.next_steps
Seat: Any = repair.Seat
Situation: Any = repair.Situation
Add: Any = repair.Add
Copy: Any = repair.Copy
Remove: Any = repair.Remove
FINE, SILENT, FAILED = Health.FINE, Health.SILENT, Health.FAILED
STEPS = 40


def nobody(_instead):
    return None


def tablet(*seats, replicas=3, leader="a"):
    return Situation(leader, replicas, tuple(seats))


def fine(name, **more):
    return Seat(name, **more)


def steps(*seats, spare="x", **more):
    return next_steps(tablet(*seats, **more), lambda _: spare)


class Group:
    """What the orders do: the leader commits a change if a majority answers, and promotes who has all."""

    def __init__(self, situation):
        self.situation = situation
        self.spare = [f"spare-{n}" for n in range(12)]

    @property
    def voters(self):
        return [s for s in self.situation.seats if s.voter]

    @property
    def answering(self):
        return [s for s in self.voters if s.health is FINE]

    def put(self, seats):
        self.situation = replace(self.situation, seats=tuple(seats))

    def step(self, step):
        seats = list(self.situation.seats)
        if isinstance(step, Add):
            assert step.server not in [s.uuid for s in seats]
            seats.append(Seat(step.server, voter=False, promote=True, holds=False))
        elif isinstance(step, Remove):
            self.remove(step.server)
            return
        else:
            seats = [replace(s, holds=True) if s.uuid == step.server else s for s in seats]
        self.put(seats)

    def remove(self, server):
        if server == self.situation.leader:
            others = [s for s in self.answering if s.uuid != server]
            assert others, "a leader without a successor is removed"
            self.situation = replace(self.situation, leader=others[0].uuid)
            return  # it has handed over; the removal is derived again
        self.put(s for s in self.situation.seats if s.uuid != server)

    def promote(self):
        seats = list(self.situation.seats)
        for n, seat in enumerate(seats):
            if seat.promote and seat.holds and not seat.voter and seat.health is FINE:
                seats[n] = replace(seat, voter=True, promote=False)
                self.put(seats)
                return

    def look(self):
        found = next_steps(self.situation, lambda _: self.spare.pop(0) if self.spare else None)
        changes = [s for s in found if not isinstance(s, Copy)]
        assert len(changes) <= 1
        for step in found:
            self.step(step)
            assert 2 * len(self.answering) > len(self.voters), self.situation
        if not found:
            self.promote()
        return found


HEALTH = st.sampled_from([FINE, FINE, FINE, SILENT, FAILED])
VOTER = st.builds(lambda health, going: Seat("?", health=health, replace=going), HEALTH,
                  st.booleans() | st.just(False))  # fmt: skip
LEARNER = st.builds(
    lambda health, holds: Seat("?", voter=False, promote=True, health=health, holds=holds),
    HEALTH, st.booleans(),
)  # fmt: skip


@st.composite
def situations(draw):
    seats = [Seat("?", replace=draw(st.booleans()))]
    seats += draw(st.lists(VOTER, max_size=6)) + draw(st.lists(LEARNER, max_size=3))
    seats = [replace(s, uuid=f"s{n}") for n, s in enumerate(seats)]
    return Situation("s0", draw(st.sampled_from([1, 3, 5])), tuple(seats))


@settings(max_examples=150, deadline=None)
@given(situations(), st.data())
def test_from_any_state_with_a_majority_the_steps_lead_to_the_full_number(situation, data):
    """Whoever is silent comes back, or is given up; nothing goes below a majority on the way."""
    group = Group(situation)
    if 2 * len(group.answering) <= len(group.voters):
        assert next_steps(situation, nobody) == []
        return
    for _ in range(STEPS):
        if not group.look() and group.situation.whole:
            break
        silent = [n for n, s in enumerate(group.situation.seats) if s.health is SILENT]
        if silent and data.draw(st.booleans()):
            seats = list(group.situation.seats)
            seats[silent[0]] = replace(seats[silent[0]], health=FINE)
            group.put(seats)
    else:
        for _ in range(STEPS):
            group.put(replace(s, health=FAILED if s.health is SILENT else s.health)
                      for s in group.situation.seats)  # fmt: skip
            group.look()
    assert group.situation.whole, group.situation
    assert group.look() == [], "and then there is peace"


def test_a_lost_voter_keeps_its_place_until_another_one_votes():
    lost = fine("c", health=FAILED)
    assert steps(fine("a"), fine("b"), lost) == [Add("x")]
    coming = Seat("x", voter=False, promote=True, holds=False)
    assert steps(fine("a"), fine("b"), lost, coming) == [Copy("x")]
    assert steps(fine("a"), fine("b"), lost, replace(coming, holds=True)) == []
    assert steps(fine("a"), fine("b"), lost, fine("x")) == [Remove("c", "it has failed")]


def test_who_is_only_silent_is_waited_for():
    assert steps(fine("a"), fine("b"), fine("c", health=SILENT)) == []
    assert steps(fine("a"), fine("b"), fine("c"), fine("d", health=SILENT)) == []


@pytest.mark.parametrize("holds", [False, True])
def test_who_comes_back_in_time_keeps_its_place_and_its_replacement_goes(holds):
    coming = Seat("x", voter=False, promote=True, holds=holds)
    assert steps(fine("a"), fine("b"), fine("c"), coming) == [Remove("x", "it is needed no more")]


def test_a_replacement_that_fails_is_taken_back_and_another_one_chosen():
    failed = Seat("x", voter=False, promote=True, holds=False, health=FAILED)
    lost = fine("c", health=FAILED)
    assert steps(fine("a"), fine("b"), lost, failed) == [
        Remove("x", "it was to become a replica, and has failed")
    ]


def test_of_two_lost_of_five_each_gets_its_own_replacement():
    seats = [fine("a"), fine("b"), fine("c"), fine("d", health=FAILED), fine("e", health=FAILED)]
    asked = []

    def choose(instead):
        asked.append(instead)
        return f"for-{instead}"

    assert next_steps(tablet(*seats, replicas=5), choose) == [Add("for-d")]
    seats.append(Seat("for-d", voter=False, promote=True, holds=False))
    assert next_steps(tablet(*seats, replicas=5), choose) == [Add("for-e"), Copy("for-d")]
    assert asked == ["d", "e"]


def test_without_a_majority_nothing_is_ordered():
    lost = [fine("b", health=FAILED), fine("c", health=FAILED)]
    assert steps(fine("a"), *lost) == []


def test_a_larger_number_is_reached_by_adding_and_a_smaller_one_by_removing_not_the_leader_first():
    three = [fine("a", load=9), fine("b", load=5), fine("c", load=7)]
    assert steps(*three, replicas=5) == [Add("x")]
    more = [*three, fine("d", load=1), fine("e", load=2)]
    why = "there are 5 replicas where 3 are wanted"
    assert steps(*more) == [Remove("c", why)]
    crowded = [replace(s, location="r1" if s.uuid in "de" else s.uuid) for s in more]
    assert steps(*crowded) == [Remove("e", why)], "first who stands beside another one"
    assert steps(*three, replicas=1)[0].server == "c"
    assert steps(fine("a"), fine("b"), replicas=1)[0].server == "b"


def test_who_is_marked_to_be_replaced_goes_when_another_one_votes_the_leader_too():
    marked = fine("a", replace=True)
    assert steps(marked, fine("b"), fine("c")) == [Add("x")]
    assert steps(marked, fine("b"), fine("c"), fine("x")) == [Remove("a", "it was to be replaced")]


def test_a_non_voter_that_nobody_promotes_is_a_persons_matter():
    assert steps(fine("a"), fine("b"), fine("c"), Seat("o", voter=False)) == []
    assert steps(fine("a"), fine("b"), fine("c"), Seat("o", voter=False, health=FAILED)) == []


def test_nothing_is_added_when_no_server_can_take_it():
    assert steps(fine("a"), fine("b"), fine("c", health=FAILED), spare=None) == []
