"""A leader that does not know of its successor serves no reads."""

from tests.sim.runs.core_run import ask_outvoted_leaders
from tests.sim.systems.core_cluster import host


def test_leader_unaware_of_successor_answers_no_read():
    ask_outvoted_leaders(1, host)
