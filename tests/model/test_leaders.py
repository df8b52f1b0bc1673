"""Exhaustive exploration of elections within small bounds; planted mistakes are detected."""

import pytest

from nyala.recipes.election import Election, Phase, Standing
from nyala.recipes.guard import Guard
from tests.model.leaders import FULL, REDUCED, Bounds, Flight, Leaders, World, explore
from tests.model.search import Broken
from tests.selected import first

TERMS = {"two terms", "a request of a second leader"}


@pytest.mark.row("S3.62", "S3.64")
@pytest.mark.parametrize("name", first(FULL))
def test_at_most_one_leader_acts_in_any_reached_state(name: str):
    found = explore(FULL[name][0], REDUCED)
    assert found.complete or found.states >= REDUCED


def broken(match: str, bounds: Bounds | None = None, system: type[Leaders] = Leaders) -> None:
    """Explore, and expect a violation."""
    with pytest.raises(Broken, match=match):
        explore(bounds or Bounds(), 400_000, system)


@pytest.mark.full
def test_two_terms_and_requests_of_both_are_reached():
    assert explore(Bounds(ids=4), 60_000).goals >= TERMS


@pytest.mark.full
def test_window_that_begins_at_the_answer_is_detected(monkeypatch: pytest.MonkeyPatch):
    taken = Election.taken
    monkeypatch.setattr(Election, "taken", lambda self, sent, last: taken(self, 0, last))
    broken("two leaders act")


def test_leader_without_window_is_detected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Election, "acts", lambda self, now: self.leadership is not None)
    broken("two leaders act")


def test_candidate_that_does_not_wait_is_detected(monkeypatch: pytest.MonkeyPatch):
    looked = Election.looked

    def at_once(self: Election, now: int, standing: Standing) -> None:
        looked(self, now, standing)
        self.until_us = now

    monkeypatch.setattr(Election, "looked", at_once)
    broken("two leaders act")


@pytest.mark.full
def test_candidate_that_does_not_compare_is_detected(monkeypatch: pytest.MonkeyPatch):
    looked = Election.looked

    def newest(self: Election, now: int, standing: Standing) -> None:
        if self.phase is Phase.CHECKING:
            self.seen = standing
        looked(self, now, standing)

    monkeypatch.setattr(Election, "looked", newest)
    broken("two leaders act", Bounds(ids=5, requests=0, orphans=0))


def test_steps_on_the_condition_of_the_holder_name_are_detected():
    """The same process in a later term: only the id distinguishes the terms."""

    class ByName(Leaders):
        def key_fails(self, world: World, flight: Flight) -> bool:
            if flight.kind == "own":
                return world.nonce[:1] != flight.nonce[:1]
            return super().key_fails(world, flight)

        def last_fails(self, world: World, flight: Flight) -> bool:
            return flight.kind != "own" and super().last_fails(world, flight)

    broken("a step of an older term took effect", Bounds(ids=5, processes=1), ByName)


@pytest.mark.full
def test_guard_that_accepts_any_epoch_is_detected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Guard, "check", lambda self, epoch: None)
    broken("a request of a replaced leader was accepted", Bounds(ids=4, requests=2))


def test_leader_that_acts_after_it_resigned_is_detected(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Election, "dropped", lambda self, now: None)
    broken("two leaders act", Bounds(ids=6, resigns=1))


@pytest.mark.full
def test_establishment_that_is_settled_by_its_last_try_is_detected(
    monkeypatch: pytest.MonkeyPatch,
):
    def unanswered(self: Election, sent_us: int) -> None:
        self.tried_us, self.phase = 0, Phase.SETTLING

    monkeypatch.setattr(Election, "unanswered", unanswered)
    broken("two leaders act", Bounds(ids=4))
