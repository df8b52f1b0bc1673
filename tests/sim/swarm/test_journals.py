"""Journals under swarm faults: steps and reads are linearizable, tails complete, replicas equal."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.enough import enough
from tests.sim.journals.deposed import ask_deposed_leaders
from tests.sim.journals.journal_run import LEVELS, judge, run_seed

ROOT = Path(__file__).parents[3]


@pytest.mark.row("S3.27", "S3.63")
@pytest.mark.parametrize(
    ("level", "seed"),
    [
        ("host", 12),
        ("host", 8),
        ("moving", 11),
        pytest.param("cluster", 2, marks=pytest.mark.full),
        ("cluster", 3),
    ],
)
def test_histories_of_journals_are_linearizable_under_faults(level, seed):
    outcome = run_seed(level, seed, seconds=15)
    assert outcome.checks["applied"] >= outcome.done["step"]


@pytest.mark.full
@pytest.mark.parametrize("level", LEVELS)
def test_every_kind_of_operation_of_journals_occurs_under_faults(level):
    checks, done = Counter[str](), Counter[str]()
    counted_s = 0.0
    for seed in range(1, 9):
        outcome = run_seed(level, seed, seconds=15)
        counted_s += outcome.counted_s
        checks, done = checks + outcome.checks, done + outcome.done
    print(checks, done, counted_s)
    assert counted_s >= 60, "steps were frequent enough to count"
    assert checks["applied"] > done["step"]
    assert checks["contents"] >= 16
    assert min(done[what] for what in ("stale read", "tail events", "rebases", "syncs")) > 0
    assert level == "cluster" or done["full"] > 10, "some journals are small"


@pytest.mark.full
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
    reads = ask_deposed_leaders(seed)
    enough(reads > 30, f"{reads} reads")
