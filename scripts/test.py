"""Runs the tiers of `./run test` one after the other, prints the time of each, and fails if any failed.

Usage: test.py [TIER ...]; without arguments all of them. A tier's budget is printed beside its time:
a tier over its budget is reported and does not fail, since machines differ.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

PY = sys.executable


@dataclass(frozen=True, slots=True)
class Tier:
    """One stage; all its commands run in order, even if one fails."""

    name: str
    budget_s: int
    commands: tuple[tuple[str, ...], ...]


def pytest(*args: str, limit_s: int) -> tuple[str, ...]:
    """Return a pytest command with a time-out per test."""
    return (PY, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={limit_s}", *args)


BY_FILE = ("-n", "2", "--dist", "loadfile")
"""Two files at a time, each with its own clusters; with four, tests fail on a loaded machine."""
BY_TEST = ("-n", "2", "--dist", "worksteal")
"""For tests of which some take a minute: an idle worker takes tests that another one has not started."""

TIERS = (
    Tier(
        "static",
        60,
        (
            ("ruff", "format", "--check", "--quiet", "."),
            ("ruff", "check", "--quiet", "."),
            (PY, "-m", "mypy"),
            ("lint-imports", "--no-cache"),
            pytest("tests/tidy", limit_s=60),
        ),
    ),
    Tier(
        "core",
        180,
        (
            pytest(
                "-n",
                "2",
                "tests/unit",
                "tests/scenarios",
                "tests/model",
                "tests/properties",
                limit_s=180,
            ),
        ),
    ),
    Tier("sim", 180, (pytest(*BY_TEST, "tests/sim", "tests/judge", limit_s=300),)),
    Tier("cluster", 210, (pytest(*BY_FILE, "tests/cluster", limit_s=600),)),
    Tier("faults", 90, (pytest(*BY_FILE, "tests/faults", limit_s=600),)),
    Tier("spark", 240, (pytest(*BY_FILE, "tests/spark", limit_s=600),)),
    Tier("docs", 90, (pytest("-n", "2", "tests/docs", limit_s=600),)),
)


def run(tier: Tier) -> tuple[bool, float]:
    """Run one tier; return whether all passed, and the seconds it took."""
    started = time.monotonic()
    good = True
    for command in tier.commands:
        shown = " ".join("python" if c == PY else c for c in command)
        print(f"\n--- {tier.name}: {shown}", flush=True)
        environ = {**os.environ, "HYPOTHESIS_PROFILE": os.environ.get("HYPOTHESIS_PROFILE", "ci")}
        good = subprocess.run(command, check=False, env=environ).returncode == 0 and good
    return good, time.monotonic() - started


def main(names: list[str]) -> int:
    """Run the named tiers, or all; print a table; return the exit status."""
    unknown = set(names) - {t.name for t in TIERS}
    if unknown:
        print(f"no tier {sorted(unknown)}; tiers: {[t.name for t in TIERS]}", file=sys.stderr)
        return 2
    rows = [(t, *run(t)) for t in TIERS if not names or t.name in names]
    print("\ntier      result   seconds   budget")
    for tier, good, seconds in rows:
        print(
            f"{tier.name:<9} {'passed' if good else 'FAILED':<8} {seconds:>7.0f} {tier.budget_s:>8}"
        )
    return 0 if all(good for _, good, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
