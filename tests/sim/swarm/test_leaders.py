"""Leaders of a log under faults of the journal and of themselves: at most one acts at any time."""

import pytest

from tests.sim.journals.leaders import run_leaders


@pytest.mark.row("S3.59", "S3.64", "S3.67")
@pytest.mark.parametrize("seed", [1, 2])
def test_at_most_one_leader_acts_under_faults_and_a_crashed_one_is_replaced(seed):
    found = run_leaders(seed, 240)
    assert len(found.epochs) > 5, "leaders were replaced"
    assert found.done["kill"] > 3
    assert found.done["pause"] > 3
    assert found.done["lost"] > 0
    assert found.done["step"] > 50
    assert found.done["request"] > 50
