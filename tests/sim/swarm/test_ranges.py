"""Ranges added and dropped under readers and writers that opened the table before, and under faults."""

import pytest

from tests.sim.runs.ranges_run import run_ranges


@pytest.mark.parametrize("seed", [1, 2])
def test_reads_are_complete_and_repeatable_under_range_changes(seed):
    """D1, D2."""
    done = run_ranges(seed, seconds=15).seen.done
    assert sum(done[what] for what in ("add", "drop", "again", "all")) >= 5
    assert done["write"] > 200
    assert min(done[what] for what in ("scan", "part", "past", "count", "feed")) >= 3
    assert min(done[what] for what in ("copy", "followed", "resumed")) >= 3
