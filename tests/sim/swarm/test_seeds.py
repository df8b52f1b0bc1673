"""The recorded seeds, some of them in the gate; fresh ones for a while, derived from the commit."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.sim.faults.plan import KINDS, MIXTURES
from tests.sim.runs.judge import judge
from tests.sim.runs.levels import LEVELS, NOT_AT

ROOT = Path(__file__).parents[3]
RECORDED = Path(__file__).parent.parent / "seeds.txt"
FRESH_S = {"core": 5, "wal": 8, "host": 20, "moving": 15, "cluster": 24}
"""Real time for fresh seeds of each level; `./run sim --minutes` and the soaks run them for hours."""
EVERY_KIND_AT, SEEDS = ("host", "moving"), 40
"""Levels whose first seeds must have every kind of fault of the level, and their number."""


FIRST = 2
"""Number of recorded seeds of each level in the gate."""


def recorded(level: str) -> list[tuple[int, int]]:
    """Return the recorded seeds of a level, each with the version of its mixture."""
    lines = [line.split(maxsplit=3) for line in RECORDED.read_text().splitlines()]
    return [(int(words[1]), int(words[2])) for words in lines if words and words[0] == level]


def fresh() -> int:
    """Return the first fresh seed: from the commit, or 0 where there is none."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(found[:8], 16) if found else 0


def faults_of(level: str, seeds: Iterable[tuple[int, int]]) -> Counter[str]:
    """Run seeds, each with the version of its mixture; return the faults."""
    faults: Counter[str] = Counter()
    for seed, mixture in seeds:
        verdict = judge(level, seed, mixture=mixture)
        print(verdict.line())
        assert not verdict.report, verdict.report
        faults += verdict.faults
    return faults


@pytest.mark.parametrize("level", LEVELS)
def test_first_recorded_seeds_pass(level: str):
    faults_of(level, recorded(level)[:FIRST])


@pytest.mark.full
@pytest.mark.parametrize("level", LEVELS)
def test_recorded_seeds_pass(level: str):
    faults_of(level, recorded(level))


@pytest.mark.full
@pytest.mark.parametrize("level", EVERY_KIND_AT)
def test_every_kind_of_fault_occurs(level: str):
    faults = faults_of(level, [(seed, MIXTURES[-1]) for seed in range(SEEDS)])
    assert [k for k in KINDS if not faults[k] and k not in NOT_AT[level]] == []


@pytest.mark.full
@pytest.mark.parametrize("level", FRESH_S)
def test_fresh_seeds_pass(level: str):
    first, end = fresh(), time.monotonic() + FRESH_S[level]
    seed = first
    while time.monotonic() < end:
        verdict = judge(level, seed)
        assert not verdict.report, verdict.report
        seed += 1
    print(f"{level}: seeds {first} to {seed - 1} hold")
