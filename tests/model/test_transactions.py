"""Random worlds and explorations of the transaction protocol; each rule that is left out is missed."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.enough import enough
from tests.model.search import Broken
from tests.model.transactions.explore import FULL, explore
from tests.model.transactions.run import run, text
from tests.model.transactions.weak import TUNED, WEAK
from tests.model.transactions.world import UNTUNED
from tests.selected import first

WORLDS = 120
STATES = 500
"""States of each exploration; its full size is in `./run soak transactions`."""

CAUGHT = {
    "low-commit": 4,
    "few-prepares": 0,
    "low-resolve": 6,
    "no-read-wait": 0,
    "stale-closed": 0,
    "no-write-wait": 0,
    "wait-forgotten": 22,
    "slice-open": 4,
    "alter-at-once": 0,
    "any-order": 0,
    "unprepare-any": 1,
    "silent-again": 1,
    "reuse-attempt": 2,
    "early-catalog": 96,
    "early-resolve": 1,
    "expire-prepared": 0,
    "lease-ignores": 0,
    "latest-early": 233,
    "early-ack": 8,
    "no-key-lock": 21,
    "stream-any-epoch": 5,
    "restart-blind": 129,
    "all-parts": 0,
    "partial-part": 38,
    "stage-again": 10,
    "schema-unchecked": 0,
    "early-forget": 4,
    "mark-ahead": 0,
    "deny-forgotten": 0,
    "deny-unconfirmed": 276,
    "refusal-forgotten": 23,
    "key-denied": 64,
    "abort-of-tablets": 86,
    "abort-beside": 3,
    "drop-unchecked": 1,
    "drop-unresolved": 13,
    "unprepare-dropped": 7,
    "files-without-stages": 1,
    "files-without-prepares": 1,
}
"""For each variant a seed whose world shows it; `--weak NAME` of transactions/run.py finds one."""


def fresh() -> int:
    """Return the first fresh seed: from the commit, or 0 where there is none."""
    root = Path(__file__).parents[2]
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    ).stdout.strip()
    return int(found[:8], 16) if found else 0


@pytest.mark.parametrize(
    ("first", "worlds"), [(0, 40), pytest.param(None, WORLDS, marks=pytest.mark.full)]
)
def test_random_worlds_equal_serial_executions_by_commit_time(first: int | None, worlds: int):
    tally: Counter[str] = Counter()
    first = fresh() if first is None else first
    for seed in range(first, first + worlds):
        tally += run(seed)
    print(text(tally))
    enough(tally["commits"] > 4 * worlds, "commits")
    enough(tally["denied"] > worlds, "denied transactions")
    enough(tally["unknown"] and tally["dropped"], "unknown outcomes, and dropped tablets")


@pytest.mark.full
def test_recorded_worlds_break_no_rule_when_none_is_left_out():
    for weak, seed in CAUGHT.items():
        assert run(seed, (), TUNED.get(weak, UNTUNED))["worlds"]


def test_each_variant_has_a_seed():
    assert list(CAUGHT) == list(WEAK)


@pytest.mark.parametrize("weak", CAUGHT)
def test_rule_that_is_left_out_is_missed(weak: str):
    with pytest.raises(Broken, match=f"seed {CAUGHT[weak]}: "):
        run(CAUGHT[weak], (weak,), TUNED.get(weak, UNTUNED))


@pytest.mark.parametrize("name", first(FULL))
def test_no_order_of_events_breaks_a_rule(name: str):
    found = explore(FULL[name], STATES)
    print(f"{name}: {found.states:,} states")
    assert found.complete or found.states >= STATES


@pytest.mark.parametrize(
    ("weak", "name", "match"),
    [
        ("no-read-wait", "no fault", "then"),
        ("few-prepares", "no fault", "has no prepare"),
    ],
)
def test_exploration_misses_rule_that_is_left_out(weak: str, name: str, match: str):
    with pytest.raises(Broken, match=match):
        explore(FULL[name], 20_000, (weak,))
