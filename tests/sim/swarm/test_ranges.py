"""Ranges added and dropped under readers and writers that opened the table before, and under faults."""

from collections import Counter

import pytest

from nyala.env.clock import CEILING_STEP_US
from tests.sim.runs.ranges_run import SETTINGS, run_ranges, swarm_of


@pytest.mark.parametrize(("seed", "seconds"), [(1, 6)])
def test_reads_are_complete_and_repeatable_under_range_changes(seed, seconds):
    """D1, D2."""
    run_ranges(seed, seconds)


@pytest.mark.full
def test_all_kinds_of_reads_are_complete_and_repeatable_under_range_changes():
    done: Counter[str] = Counter()
    for seed in range(1, 6):
        done += run_ranges(seed, seconds=15).seen.done
    print(done)
    assert sum(done[what] for what in ("add", "drop", "again", "all")) >= 15
    assert done["write"] > 600
    assert min(done[what] for what in ("scan", "part", "past", "count", "feed")) >= 10
    assert min(done[what] for what in ("copy", "followed", "resumed")) >= 10


def test_clocks_of_a_run_are_within_what_servers_accept_of_each_other():
    swarms = [swarm_of(seed) for seed in range(100)]
    assert any(s.jump_s and s.skew_ms > s.offset_ms for s in swarms)
    furthest = max(2 * s.offset_ms + CEILING_STEP_US / 1000 for s in swarms)
    assert furthest < SETTINGS.clock_max_ahead_ms


@pytest.mark.full
def test_clocks_far_apart_refuse_no_read_or_write():
    """Seed 13: a jump of 4.5 s each way, and a ceiling from which a restart began, were 10.5 s apart."""
    run_ranges(13, seconds=20)
