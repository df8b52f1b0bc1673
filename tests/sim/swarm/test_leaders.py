"""Leaders of a log under faults of the journal and of themselves: at most one acts at any time."""

from collections import Counter

import pytest

from tests.sim.journals.leaders import run_leaders


@pytest.mark.row("S3.59", "S3.64", "S3.67")
@pytest.mark.parametrize("seed", [1, 2])
def test_at_most_one_leader_acts_under_faults_and_a_crashed_one_is_replaced(seed):
    run_leaders(seed, 120)


@pytest.mark.full
def test_leaders_are_killed_paused_and_replaced_often():
    done, epochs = Counter[str](), 0
    for seed in range(1, 6):
        found = run_leaders(seed, 240)
        done += found.done
        epochs += len(found.epochs)
    print(done, epochs)
    assert epochs > 25, "leaders were replaced"
    assert min(done[what] for what in ("kill", "pause")) > 15
    assert done["lost"] > 0
    assert min(done[what] for what in ("step", "request")) > 250
