"""Reads of the past have the columns of then, over random alterations, writes, flushes and compactions."""

from random import Random

import pytest

from tests.enough import enough
from tests.unit.tablet.support.past_world import STEPS, PastWorld
from tests.unit.tablet.support.tablet_support import Driver


def run(directory: str, seed: int, steps: int) -> PastWorld:
    rng = Random(seed)
    world = PastWorld(Driver(directory), rng)
    for _ in range(steps):
        getattr(world, rng.choice(STEPS))()
    world.read()
    return world


@pytest.mark.row("A14")
@pytest.mark.parametrize("seed", range(6))
def test_read_of_any_time_has_columns_and_values_of_then(tmp_path, seed):
    run(str(tmp_path / "t"), seed, 60)


@pytest.mark.full
def test_many_random_histories_of_alterations(tmp_path):
    worlds = [run(str(tmp_path / str(seed)), seed, 150) for seed in range(100, 160)]
    read = sum(w.past_reads for w in worlds)
    enough(read > 500, f"{read} reads of columns that were dropped since")
