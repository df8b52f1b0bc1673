"""Runs the tiers of `./run test` one after the other, prints the time of each, and fails if any failed.

A tier's budget is printed beside its time: a tier over its budget is reported and does not fail, since
machines differ. The kernels of a new clone are compiled once, beside the first tier, and not by each worker.

A machine on which Python is `SLOW` times slower than on the reference machine, or more, gets `LIMIT_S` for
all tiers: each tier but the first starts no test after its part of that time. The table has the number of
tests that were not run, property tests try fewer examples, and each commit begins at another file. On any
other machine all tests run, however long they take. `--all` runs them all on a slow machine too, and
`--minutes` sets the limit on any machine.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PY = sys.executable

SLOW = 3.0
"""Times slower than the reference machine."""
LIMIT_S = 75 * 60
"""Time of all tiers on a slow machine, with that of `./run` before them; CI ends a run after 90 minutes."""
LOOP = compile("x = 0\nfor i in range(1_000_000): x += i", "loop", "exec")
REFERENCE_S = 0.07
"""CPU time of `LOOP` on the reference machine (2.6 GHz)."""
COMPILE = (PY, "-c", "import nyala.tserver.server")
"""A process that ends when all kernels are in the cache."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One stage; all its commands run, in order, even if one fails.

    Attributes:
        budget_s: time that it may take.
        usual_s: time that it took on the reference machine (181e66a), for its part of a limit.
        whole: all of it runs on a slow machine too.
        servers: its tests start real servers, which take most of a slow machine when they are idle; only one
            test runs at a time there.
        together: its commands use one core each, and run at the same time.
    """

    name: str
    budget_s: int
    usual_s: int
    commands: tuple[tuple[str, ...], ...]
    whole: bool = False
    servers: bool = False
    together: bool = False

    def commands_on(self, slower: float) -> tuple[tuple[str, ...], ...]:
        """Return the commands for a machine that is so many times slower than the reference machine."""
        if not self.servers or slower < SLOW:
            return self.commands
        return tuple(_one_worker(command) for command in self.commands)


def _one_worker(command: tuple[str, ...]) -> tuple[str, ...]:
    at = command.index("-n") + 1
    return (*command[:at], "1", *command[at + 1 :])


def pytest(*args: str, limit_s: int) -> tuple[str, ...]:
    """Return a pytest command with a time-out per test."""
    return (PY, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--timeout={limit_s}", *args)


BY_FILE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""Two files at a time, each with its own clusters; with four, tests fail on a loaded machine."""
ONE_BY_ONE = ("-n", "2", "--maxschedchunk", "1")
"""For few long tests with nothing in common: a worker receives a test when it begins its last one."""
BY_TEST = ("-n", "2", "--dist", "worksteal")
"""For tests of which some take a minute: an idle worker takes tests that another one has not started."""

TIERS = (
    Tier(
        "static",
        60,
        45,
        (
            ("ruff", "format", "--check", "--quiet", "."),
            ("ruff", "check", "--quiet", "."),
            (PY, "-m", "mypy"),
            ("lint-imports", "--no-cache"),
            pytest("tests/tidy", limit_s=300),
        ),
        whole=True,
        together=True,
    ),
    Tier(
        "core",
        180,
        253,
        (
            pytest(
                "-n",
                "2",
                "tests/unit",
                "tests/scenarios",
                "tests/model",
                "tests/properties",
                limit_s=600,
            ),
        ),
    ),
    Tier("sim", 180, 191, (pytest(*BY_TEST, "tests/sim", "tests/judge", limit_s=600),)),
    Tier("cluster", 210, 420, (pytest(*BY_FILE, "tests/cluster", limit_s=600),), servers=True),
    Tier("faults", 90, 122, (pytest(*ONE_BY_ONE, "tests/faults", limit_s=600),), servers=True),
    Tier("spark", 240, 174, (pytest(*BY_FILE, "tests/spark", limit_s=600),), servers=True),
    Tier("docs", 90, 69, (pytest("-n", "2", "tests/docs", limit_s=600),), servers=True),
)


@dataclass(frozen=True, slots=True)
class Result:
    """How a tier ended; `left` is the number of its tests that were not run."""

    good: bool
    seconds: float
    left: int


def slowness() -> float:
    """Return how many times slower Python is here than on the reference machine: the best of five."""
    times = []
    for _ in range(5):
        started = time.process_time()
        exec(LOOP, {})
        times.append(time.process_time() - started)
    return min(times) / REFERENCE_S


def run(tier: Tier, slower: float, end: float | None) -> Result:
    """Run one tier; start no test after `end`, a Unix time."""
    started = time.monotonic()
    good = True
    with tempfile.TemporaryDirectory() as folder:
        left = Path(folder, "left")
        environ = {"HYPOTHESIS_PROFILE": "ci", **os.environ, "TESTS_SLOWER": f"{slower:.1f}"}
        if end is not None:
            environ |= {"TESTS_END": f"{end:.0f}", "TESTS_LEFT": str(left)}
            environ["TESTS_FIRST"] = commit()
        commands = tier.commands_on(slower)
        titles = [" ".join("python" if c == PY else c for c in command) for command in commands]
        if tier.together:
            good = run_together(tier.name, titles, commands, environ)
        else:
            for title, command in zip(titles, commands, strict=True):
                print(f"\n--- {tier.name}: {title}", flush=True)
                good = subprocess.run(command, check=False, env=environ).returncode == 0 and good
        count = sum(map(int, left.read_text().split())) if left.exists() else 0
    return Result(good, time.monotonic() - started, count)


def run_together(
    name: str, titles: Sequence[str], commands: Sequence[Sequence[str]], environ: Mapping[str, str]
) -> bool:
    """Run commands at the same time; print their outputs in their order; return True if all succeed."""
    good = True
    with contextlib.ExitStack() as stack:
        started = []
        for command in commands:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
            started.append((stack.enter_context(process), output))
        for title, (process, output) in zip(titles, started, strict=True):
            good = process.wait() == 0 and good
            output.seek(0)
            print(f"\n--- {name}: {title}\n{output.read()}", end="", flush=True)
    return good


def commit() -> str:
    """Return the commit's name, or "0" outside a repository."""
    found = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or "0"


def run_all(tiers: list[Tier], slower: float, end: float | None) -> list[tuple[Tier, Result]]:
    """Run the tiers; each gets its usual part of the remaining time."""
    rows = []
    for number, tier in enumerate(tiers):
        part = tier.usual_s / sum(t.usual_s for t in tiers[number:])
        now = time.time()
        own_end = None if end is None or tier.whole else now + max(0.0, end - now) * part
        rows.append((tier, run(tier, slower, own_end)))
    return rows


def main(arguments: list[str]) -> int:
    """Run the named tiers, or all; print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--all", action="store_true", help="run all tests, however long they take")
    limits.add_argument("--minutes", type=float, help="start no test after so many minutes")
    names = [t.name for t in TIERS]
    parser.add_argument("tier", nargs="*", help=f"{', '.join(names)}; default: all")
    options = parser.parse_args(arguments)
    chosen = options.tier or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no tier {sorted(unknown)}; tiers: {names}")
    slower, limit_s = max(1.0, slowness()), None
    if options.minutes is not None:
        limit_s = options.minutes * 60
    elif slower >= SLOW and not options.all:
        limit_s = LIMIT_S - float(os.environ.get("RUN_SECONDS", "0"))
    if limit_s is not None:
        print(
            f"Python is {slower:.1f} times slower here than on the reference machine. Tests that do not "
            f"start within {limit_s / 60:.0f} minutes are not run, and are counted below; --all runs them"
        )
    end = None if limit_s is None else time.time() + limit_s
    with subprocess.Popen(COMPILE):
        first = run_all([t for t in TIERS if t.name in chosen and t.whole], slower, end)
    rows = first + run_all([t for t in TIERS if t.name in chosen and not t.whole], slower, end)
    print("\ntier      result   seconds   budget   tests not run")
    for tier, result in rows:
        word = "passed" if result.good else "FAILED"
        print(
            f"{tier.name:<9} {word:<8} {result.seconds:>7.0f} {tier.budget_s:>8} {result.left:>15}"
        )
    return 0 if all(result.good for _, result in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
