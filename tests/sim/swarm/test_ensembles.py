"""Coordinators of an ensemble under swarm faults, compared with a model derived from their log."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.ensembles.run import judge, run_seed

ROOT = Path(__file__).parents[3]


@pytest.mark.row("S3.16", "S3.17", "S3.55")
@pytest.mark.parametrize("seed", [3, 8])
def test_ensemble_is_as_its_log_says_under_faults(seed):
    assert run_seed(seed, seconds=15).checks["quiet moments"] == 2


@pytest.mark.full
def test_every_check_of_ensembles_is_made_under_faults():
    checks, done, faults = Counter[str](), Counter[str](), Counter[str]()
    counted_s = 0.0
    for seed in range(1, 11):
        outcome = run_seed(seed, seconds=15)
        counted_s += outcome.counted_s
        checks, done, faults = (
            checks + outcome.checks, done + outcome.done, faults + outcome.faults,
        )  # fmt: skip
    print(checks, done, faults, counted_s)
    assert counted_s >= 60, "changes were frequent enough to count"
    assert checks["take-overs"] > 20, "leaders were replaced"
    assert checks["late request refused: StaleEpoch"] > 50
    assert checks["dumps"] > 1000
    assert done["done recover_tablets"], "servers have crashed"
    assert faults["kill at a point"] + faults["pause at a point"]


@pytest.mark.full
def test_fresh_seed_violates_no_guarantee_of_ensembles():
    """A seed of each commit's own."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    seed = int(commit[:8], 16) if commit else 0
    found = judge((seed, 12.0, 60))
    assert not found.report, found.report
