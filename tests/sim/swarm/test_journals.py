"""Journals under swarm faults: steps and reads are linearizable, tails complete, replicas equal."""

import subprocess
from pathlib import Path

import pytest

from tests.sim.journals.deposed import ask_deposed_leaders
from tests.sim.journals.journal_run import LEVELS, judge, run_seed

ROOT = Path(__file__).parents[3]


@pytest.mark.row("S3.27", "S3.63")
@pytest.mark.parametrize(
    ("level", "seed"), [("host", 12), ("host", 8), ("moving", 11), ("cluster", 2)]
)
def test_histories_of_journals_are_linearizable_under_faults(level, seed):
    outcome = run_seed(level, seed, seconds=15)
    assert outcome.counted_s, "definitions were frequent enough to count"
    assert outcome.checks["applied"] > outcome.done["step"]
    assert outcome.checks["contents"] >= 2
    assert min(outcome.done[what] for what in ("stale read", "tail events", "rebases", "syncs")) > 0
    assert level != "host" or outcome.done["full"] > 10, "its journal is small"


@pytest.mark.parametrize("level", LEVELS)
def test_fresh_seed_violates_no_guarantee_of_journals(level):
    """A seed of each commit's own."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    seed = int(commit[:8], 16) if commit else 0
    found = judge((level, seed, 15.0, 60))
    assert not found.report, found.report


@pytest.mark.parametrize("seed", [1, 2])
def test_reads_at_deposed_leaders_are_linearizable(seed):
    assert ask_deposed_leaders(seed) > 30
