"""Runs the tiers of `./run test` one after the other, prints the time of each, and fails if any failed.

`./run test` is the gate: the tests without the mark `full`. `./run test --full` runs all tests, of all
tiers or of those that are named. A tier's budget is printed beside its time: a tier over its budget is
reported and does not fail, since machines differ. The kernels of a new clone are compiled once, beside the
first tier. A command in which no test begins or ends for `SILENT_S` is ended: it hangs outside of its tests.

Deadlines of tests are multiplied by how many times slower than the reference machine this one computes or
syncs its disk, at most ten (TESTS_SLOWER, tests/waiting.py). A failed test of real processes is run once
more, alone, at the end of its tier: if it passes then, the run prints FLAKY and continues. Processes that
tests leave are killed, and the tier has failed. The last lines name the failed tests.
"""

import argparse
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.testrun import busy, leftovers, results
from scripts.testrun.results import Seen
from scripts.testrun.speed import slowness
from tests.reporting import stacks

PY = sys.executable
SLOW = 3.0
"""Times slower than the reference machine, from which on tests with servers run one at a time."""
COMPILE = (PY, "-c", "import nyala.tserver.server")
"""A process that ends when all kernels are in the cache."""
PER_TEST_S = 600
"""Time-out of a test without one of its own, on the reference machine."""
SILENT_S = 1500.0
"""Time without a test that begins or ends after which a command is ended; the limit of a test is shorter."""
POLL_S = 0.2
"""Time between two looks at a command."""
MOST_AGAIN = 8
"""Failed tests of a tier that are run once more; if more fail, it is not by chance."""
LAST_LINES = 36
LINES, WIDTH = 5, 220
"""Lines of a failed command without a report of tests, and their length."""


@dataclass(frozen=True, slots=True)
class Tier:
    """One stage; all its commands run, in order, even if one fails.

    Attributes:
        budget_s: time that the gate's part may take on the reference machine.
        servers: its tests start real servers, which take most of a slow machine when they are idle: one test
            at a time runs there. A failed one is run once more.
        together: its commands use one core each, and run at the same time.
        only_full: it has no test in the gate.
    """

    name: str
    budget_s: int
    commands: tuple[tuple[str, ...], ...]
    servers: bool = False
    together: bool = False
    only_full: bool = False

    def commands_on(self, slower: float) -> tuple[tuple[str, ...], ...]:
        """Return the commands for a machine that is so many times slower than the reference machine."""
        if not self.servers or slower < SLOW:
            return self.commands
        return tuple(_one_worker(command) for command in self.commands)


def _one_worker(command: tuple[str, ...]) -> tuple[str, ...]:
    at = command.index("-n") + 1
    return (*command[:at], "1", *command[at + 1 :])


def pytest(*args: str) -> tuple[str, ...]:
    """Return a pytest command with a time-out per test."""
    plugins = ("-p", "no:cacheprovider", "-p", "tests.reporting")
    return (PY, "-m", "pytest", "-q", *plugins, f"--timeout={PER_TEST_S}", *args)


BY_FILE = ("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder")
"""Two files at a time, each with its own clusters; with four, tests fail on a loaded machine."""
ONE_BY_ONE = ("-n", "2", "--maxschedchunk", "1")
"""For few long tests with nothing in common: a worker receives a test when it begins its last one."""
BY_TEST = ("-n", "2", "--dist", "worksteal")
"""For tests of which some take long: an idle worker takes tests that another one has not started."""
CORE = ("tests/unit", "tests/scenarios", "tests/model", "tests/properties")

TIERS = (
    Tier(
        "static",
        60,
        (
            ("ruff", "format", "--check", "--quiet", "."),
            ("ruff", "check", "--quiet", "."),
            (PY, "-m", "mypy"),
            ("lint-imports", "--no-cache"),
            pytest("tests/tidy"),
        ),
        together=True,
    ),
    Tier("core", 230, (pytest(*BY_TEST, *CORE),)),
    Tier("sim", 86, (pytest(*BY_TEST, "tests/sim", "tests/judge"),)),
    Tier("cluster", 80, (pytest(*BY_FILE, "tests/cluster"),), servers=True),
    Tier("faults", 0, (pytest(*ONE_BY_ONE, "tests/faults"),), servers=True, only_full=True),
    Tier("spark", 90, (pytest(*BY_FILE, "tests/spark"),), servers=True),
    Tier("docs", 20, (pytest("-n", "2", "tests/docs"),), servers=True),
)


@dataclass(slots=True)
class Result:
    """How a tier ended.

    Attributes:
        good: nothing failed, or only what passed when it was run once more.
        seconds: time that it took.
        cpu_s: time of the processors that its commands took, and what they started and waited for: if it is
            no higher than before, a tier that took longer was held up by the machine.
        seen: what its tests came to.
        flaky: tests that failed and then passed, with the first line of the error.
        other: commands without tests that failed, processes that were left, time that was over.
    """

    good: bool = True
    seconds: float = 0.0
    cpu_s: float = 0.0
    seen: Seen = field(default_factory=Seen)
    flaky: dict[str, str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)


def run(tier: Tier, slower: float, *, full: bool) -> Result:
    """Run one tier.

    Args:
        tier: what to run.
        slower: factor of the deadlines of its tests.
        full: all its tests, not only those of the gate.
    """
    started, cpu, result = time.monotonic(), _cpu_of_children(), Result()
    commands = [_selected(command, full) for command in tier.commands_on(slower)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report")
        environ = environment(slower, full, report)
        if tier.together:
            _run_together(tier.name, commands, environ, result)
        else:
            statuses = []
            for command in commands:
                print(f"\n--- {tier.name}: {title(command)}", flush=True)
                statuses.append(_run_one(command, environ, result))
            if TESTS_FAILED in statuses and not results.read(report).failed:
                result.other.append(
                    f"pytest failed without a failed test: see the end of {tier.name}"
                )
        result.seen = results.read(report)
        result.good = not (result.other or result.seen.failed)
        failed = list(result.seen.failed)
        if tier.servers and failed and not result.other and len(failed) <= MOST_AGAIN:
            _run_again(tier, result, environ, Path(folder, "again"))
    result.seconds, result.cpu_s = time.monotonic() - started, _cpu_of_children() - cpu
    return result


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _selected(command: tuple[str, ...], full: bool) -> tuple[str, ...]:
    return command if full or "pytest" not in command else (*command, "-m", "not full")


def title(command: Sequence[str]) -> str:
    """Return a command as text."""
    return " ".join("python" if word == PY else word for word in command)


CHANGING = (
    "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTHONWARNINGS", "LANGUAGE", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip
"""Variables that would change what the tests do, or have each process compile their modules anew."""


def environment(slower: float, full: bool, report: Path) -> dict[str, str]:
    """Return the variables of a tier's processes: those of this one, without what would change the tests.

    An unusable `HOME` becomes a folder beside the report.
    """
    kept = {k: v for k, v in os.environ.items() if k not in CHANGING}
    ours = {"TESTS_SLOWER": f"{slower:.1f}", "TESTS_REPORT": str(report)}
    ours |= {"LC_ALL": "C.UTF-8", "TZ": "UTC"}
    home = Path(kept.get("HOME", ""))
    if not (home.is_absolute() and home.is_dir() and os.access(home, os.W_OK)):
        ours["HOME"] = str(report.with_name("home"))
        Path(ours["HOME"]).mkdir(exist_ok=True)
    return {"HYPOTHESIS_PROFILE": "ci", **kept, **ours, **({"TESTS_FULL": "1"} if full else {})}


def _run_one(command: Sequence[str], environ: Mapping[str, str], result: Result) -> int:
    """Run a command; add what went wrong, other than its tests, to `result`; return its exit status."""
    with subprocess.Popen(command, env=environ, start_new_session=True) as process:
        return _ended(command, process, Path(environ["TESTS_REPORT"]), result)


NO_TESTS, TESTS_FAILED = 5, 1
"""Exit statuses of pytest that say nothing beyond its report: none was selected; some failed."""


def _ended(
    command: Sequence[str], process: subprocess.Popen[str] | subprocess.Popen[bytes],
    report: Path, result: Result,
) -> int:  # fmt: skip
    status: int | None = None
    try:
        status = _wait(process, report)
        if status is None:
            result.other.append(f"ended, since it was {SILENT}: {title(command)}")
    finally:
        if status is None:
            leftovers.kill_tree(process.pid)
    result.other += leftovers.end_orphans(keep=process.pid)
    if status not in (None, 0, NO_TESTS, TESTS_FAILED if "pytest" in command else 0):
        result.other.append(f"exit status {status}: {title(command)}")
    return process.wait() if status is None else status


SILENT = "silent for too long"


def _wait(process: "subprocess.Popen[Any]", report: Path) -> int | None:
    """Return the exit status of a command; None if its report did not grow for `SILENT_S`.

    The stacks of its processes are printed then.
    """
    size, since = -1, time.monotonic()
    while time.monotonic() - since < SILENT_S:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        now = report.stat().st_size if report.exists() else 0
        if now != size:
            size, since = now, time.monotonic()
    print(f"\nstacks of processes that are {SILENT}\n{stacks(os.getpid())}", flush=True)
    return None


def _run_together(
    name: str, commands: Sequence[Sequence[str]], environ: Mapping[str, str], result: Result
) -> None:
    """Run commands at the same time; print their outputs in their order."""
    with contextlib.ExitStack() as stack:
        started = []
        for command in commands:
            output = stack.enter_context(tempfile.TemporaryFile("w+"))
            process = subprocess.Popen(command, env=environ, stdout=output, stderr=output)
            started.append((command, stack.enter_context(process), output))
            stack.callback(process.kill)  # of an interrupted run
        for command, process, output in started:
            status = _wait(process, Path(environ["TESTS_REPORT"]))
            if status is None:
                leftovers.kill_tree(process.pid)
            output.seek(0)
            printed = output.read()
            print(f"\n--- {name}: {title(command)}\n{printed}", end="", flush=True)
            if status not in (0, TESTS_FAILED if "pytest" in command else 0):
                ended = SILENT if status is None else f"exit status {status}"
                last = [line[:WIDTH] for line in printed.splitlines() if line.strip()][-LINES:]
                result.other.append("\n    ".join([f"{ended}: {title(command)}", *last]))


def _run_again(tier: Tier, result: Result, environ: Mapping[str, str], report: Path) -> None:
    """Run the failed tests of a tier once more, alone; those that pass now are flaky."""
    failed = dict(result.seen.failed)
    command = _selected(pytest(*failed), full=True)
    print(f"\n--- {tier.name}, once more: {title(command)}", flush=True)
    _run_one(command, {**environ, "TESTS_REPORT": str(report)}, result)
    seen = results.read(report)
    passed = [name for name in failed if name in seen.passed and name not in seen.failed]
    for name in passed:
        result.flaky[name] = (result.seen.failed.pop(name) or ["no error was recorded"])[0]
        result.seen.passed.add(name)
    result.good = not (result.other or result.seen.failed)


def run_all(tiers: Sequence[Tier], slower: float, *, full: bool) -> Iterator[tuple[Tier, Result]]:
    """Run the tiers; yield the result of each."""
    for tier in tiers:
        yield tier, run(tier, slower, full=full)


def tell(rows: Sequence[tuple[Tier, Result]]) -> list[str]:
    """Return the last lines of a run: the tiers, its slowest tests, flaky ones, and why it failed."""
    lines = ["", "tier      result   seconds   budget      CPU   tests"]
    for tier, result in rows:
        tests = len(result.seen.passed) + len(result.seen.failed)
        word = ("passed" if tests else "no tests") if result.good else "FAILED"
        lines.append(
            f"{tier.name:<9} {word:<8} {result.seconds:>7.0f} {tier.budget_s:>8}"
            f" {result.cpu_s:>8.0f} {tests:>7}"
        )
    slow = sorted(((s, t) for _, r in rows for t, s in r.seen.seconds.items()), reverse=True)[:10]
    lines += ["", "slowest tests", *(f"{seconds:>7.1f} s  {test}" for seconds, test in slow), ""]
    lines += [f"FLAKY {name}: {error}" for _, r in rows for name, error in r.flaky.items()]
    failed = [line for _, r in rows for text in r.other for line in f"FAILED {text}".splitlines()]
    broken = [(name, error) for _, r in rows for name, error in r.seen.failed.items()]
    room = max(0, (LAST_LINES - len(failed) - len(broken)) // max(1, len(broken)))
    for name, error in broken[: LAST_LINES - 4]:
        failed += [f"FAILED {name}", *(f"    {line}" for line in error[:room])]
    if len(broken) > LAST_LINES - 4:
        failed.append(f"and {len(broken) - LAST_LINES + 4} further failed tests")
    passed = sum(len(r.seen.passed) for _, r in rows)
    return [*lines, *failed, f"{passed} passed, {len(broken)} failed"]


def _end(number: int, frame: object) -> None:
    """End the run as an interrupt does, so that all that it started ends too."""
    del frame
    raise SystemExit(128 + number)


def main(arguments: list[str]) -> int:
    """Run the gate, or the named tiers, or all; print a table; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="all tests, not only those of the gate")
    parser.add_argument(
        "--under-load", action="store_true", help="beside four busy processes and one that syncs"
    )
    names = [t.name for t in TIERS]
    parser.add_argument("tier", nargs="*", help=f"{', '.join(names)}; default: all")
    options = parser.parse_args(arguments)
    if unknown := set(options.tier) - set(names):
        parser.error(f"no tier {sorted(unknown)}; tiers: {names}")
    chosen = [
        t for t in TIERS
        if (t.name in options.tier if options.tier else options.full or not t.only_full)
    ]  # fmt: skip
    signal.signal(signal.SIGTERM, _end)
    leftovers.adopt_orphans()
    load = busy.load() if options.under_load else contextlib.nullcontext()
    with load:
        slower = slowness()
        print(f"deadlines are those of the reference machine times {slower:.1f}", flush=True)
        with subprocess.Popen(COMPILE) as compiling:
            leftovers.OWN.add(compiling.pid)
            rows = list(run_all(chosen[:1], slower, full=options.full))
        rows += run_all(chosen[1:], slower, full=options.full)
    print("\n".join(tell(rows)), flush=True)
    return 0 if all(result.good for _, result in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
