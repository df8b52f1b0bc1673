"""Limit of a journal's size: what a step adds and frees is what it changes, in any combination."""

import random

import pytest

from nyala.journal import steps
from nyala.journal.growth import Growth
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed
from tests.unit.journal.journal_model import Model, draw_step


def journal(limit_bytes: int = 1 << 40) -> JournalState:
    return JournalState(Unflushed(), limit_bytes=limit_bytes)


def applied(state: JournalState, *made: steps.Change) -> steps.Result:
    return state.apply(steps.Step([], made), state.last + 1)


def growth(state: JournalState, *made: steps.Change) -> int:
    counted = Growth(state.logs, state.keys)
    counted.count(made)
    return counted.added - counted.freed


def filled() -> tuple[JournalState, list[int]]:
    state = journal()
    done = applied(state, *[steps.Append("a", bytes(100))] * 3, steps.SetKey("k", bytes(50)))
    assert isinstance(done, steps.Done)
    return state, list(done.ids)


@pytest.mark.parametrize(
    "changes",
    [
        [steps.Append("new", b"1"), steps.Append("new", b"2")],
        [steps.Append("a", b"1", (1,))],
        [steps.Append("a", b"1", (1, 1)), steps.Invalidate("a", (1, 2))],
        [steps.Invalidate("a", (1,)), steps.DeleteLog("a")],
        [steps.DeleteLog("a"), steps.DeleteLog("a"), steps.Invalidate("a", (1,))],
        [steps.DeleteLog("a"), steps.Append("a", b"1", (1,)), steps.Append("a", b"2")],
        [steps.SetKey("k", bytes(70)), steps.SetKey("k", bytes(10))],
        [steps.SetKey("k", b""), steps.DeleteKey("k"), steps.DeleteKey("k")],
        [steps.DeleteKey("k"), steps.SetKey("k", bytes(9)), steps.SetKey("l", bytes(9))],
        [steps.DeleteKey("nobody"), steps.DeleteLog("nobody"), steps.Invalidate("nobody", (1,))],
    ],
)
def test_growth_is_that_of_the_size(changes):
    state, _ = filled()
    before, counted = state.size_bytes, growth(state, *changes)
    applied(state, *changes)
    assert state.size_bytes - before == counted


@pytest.mark.parametrize("seed", range(5))
def test_growth_is_never_below_that_of_the_size(seed):
    draw, model, state = random.Random(seed), Model(), journal()
    for stamp in range(1000, 5000, 10):
        step = draw_step(draw, model)
        before, counted = state.size_bytes, growth(state, *step.changes)
        expected = model.apply(step, stamp)
        assert state.apply(step, stamp) == expected
        if isinstance(expected, steps.Done):
            assert state.size_bytes - before <= counted


def test_journal_takes_steps_up_to_its_limit_exactly():
    state, ids = filled()
    entry = 32 + 8
    state.limit_bytes = state.size_bytes + entry
    assert applied(state, steps.Append("a", bytes(9))) == steps.Full(
        state.size_bytes + entry + 1, state.limit_bytes
    )
    assert isinstance(applied(state, steps.Append("a", bytes(8))), steps.Done)
    assert isinstance(applied(state, steps.Append("a", b"")), steps.Full)
    assert isinstance(applied(state, steps.Append("a", bytes(100), (ids[0],))), steps.Done)


def test_journal_above_a_lowered_limit_takes_what_does_not_grow():
    state, ids = filled()
    state.limit_bytes = 1
    assert isinstance(applied(state, steps.Append("a", bytes(100), (ids[0],))), steps.Done)
    assert isinstance(applied(state, steps.SetKey("k", bytes(50))), steps.Done)
    assert isinstance(applied(state, steps.SetKey("k", bytes(51))), steps.Full)
    assert isinstance(applied(state, steps.Invalidate("a", (ids[1],))), steps.Done)


@pytest.mark.parametrize("seed", range(6))
def test_journal_near_its_limit_matches_the_model(seed):
    draw, limit = random.Random(seed), 3_000 + 500 * seed
    model, state = Model(limit), journal(limit)
    results = []
    for stamp in range(1000, 9000, 10):
        step = draw_step(draw, model)
        expected = model.apply(step, stamp)
        assert state.apply(step, stamp) == expected
        results.append(type(expected))
        assert state.size_bytes == model.size_bytes <= limit
    assert results.count(steps.Full) > 50
    assert results.count(steps.Done) > 50
