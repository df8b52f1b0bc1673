"""Directed runs of the simulator for the judge: one harm each, where drawn faults meet it too seldom."""

import pytest

from tests.sim.core_cluster import Make, core, host
from tests.sim.core_run import ask_paused_leaders


@pytest.mark.parametrize("make", [core(), host], ids=["core", "replica"])
def test_a_leader_that_was_paused_answers_nothing_stale(make: Make):
    ask_paused_leaders(2, make)
