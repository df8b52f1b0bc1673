"""The operation fuzz at its reduced size, what it found before, and that it finds and shortens a failure."""

import pytest

from tests.properties import tablet_fuzz as fuzz
from tests.properties import tablet_steps as steps

FOUND: dict[str, tuple[int, list[fuzz.Operation]]] = {
    "a batch without rows whose key is a decimal": (3, [("write_group", 2760193759)]),
}


def test_there_are_enough_kinds_of_operation():
    assert len(steps.STEPS) >= 23


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_thousand_operations_on_five_keys(seed):
    report = fuzz.run(seed, 1000)
    assert report is None, report


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_before(name):
    assert fuzz.problem(*FOUND[name]) is None


def test_a_failure_is_shortened_to_what_it_needs(monkeypatch):
    def collapse(world, chance):
        world.model.rows = dict(list(world.model.rows.items())[:-1])

    monkeypatch.setitem(steps.STEPS, "forget", collapse)
    operations = [*fuzz.draw(1, 40), ("upsert", 5), ("forget", 1), *fuzz.draw(2, 20)]
    assert fuzz.problem(1, operations)
    kept = fuzz.shortest(1, operations, 20)
    assert ("forget", 1) in kept
    assert len(kept) <= 3
