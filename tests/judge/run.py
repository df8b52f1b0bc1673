"""The judge: checks of a changed tree within a fixed budget, the cheapest part first.

    python -m tests.judge.run

First the tree must pass without faults (`fault_free`): a mutant that fails there is too coarse to test the
judge. Then directed scenarios, the models of tests/model, and fixed seeds of the
simulator. The last line names the part that detected the mutant, and the time. Exit status: 0 survived, 2
too coarse, 3 killed; with any other there is no verdict.
"""

import argparse
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.judge import scenarios
from tests.judge.directed_clients import fault_free_run
from tests.sim.runs.judge import judge
from tests.sim.systems.core_cluster import core, host
from tests.sim.systems.stores import WalLog
from tests.sim.world.loop import run

ROOT = Path(__file__).parents[2]
MODEL_STATES = 45_000
SEEDS = (("core", 12), ("wal", 12), ("host", 30), ("cluster", 4))
"""Levels of the simulator, and the number of seeds of each."""
SURVIVED, COARSE, KILLED = 0, 2, 3
LIMIT_S = 200
"""Time limit of one part, in seconds; a part that hangs has detected the mutant."""

Part = tuple[str, list[str]]


def parts() -> list[Part]:
    """Return the name and the command of each part, in their order."""
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    seeds = [
        (f"simulator, {level}", [*python, "tests.judge.run", "--level", level, "--seeds", str(n)])
        for level, n in SEEDS
    ]
    return [
        ("scenarios", [*python, "tests.judge.scenarios"]),
        ("directed simulation", [*python, "tests.judge.directed"]),
        ("model", [*python, "tests.model.run", "--states", str(MODEL_STATES)]),
        *seeds[:-1],
        ("cluster scenarios", [*pytest, "tests/sim/scenarios/test_scenarios.py"]),
        seeds[-1],
    ]


def fault_free() -> str:
    """Return the first failure of the runs without faults; empty if there is none."""
    if failed := scenarios.failing(fault_free=True):
        return failed
    try:
        for make in (core(), core(store=WalLog), host):
            run(partial(fault_free_run, make=make))
    except Exception as err:  # any failure, since there is no fault
        return f"{type(err).__name__} without a fault: {err}"
    return ""


def seeds(level: str, count: int) -> int:
    """Run fixed seeds of one level until one fails; return the exit status."""
    for seed in range(count):
        verdict = judge(level, seed, 12, lines=0, mixture=1)
        if verdict.report:
            print(f"{level} seed {seed}: {_failure(verdict.report)}")
            return 1
    return 0


def _failure(report: str) -> str:
    failed = [line for line in report.splitlines() if line.startswith("FAILED")]
    return failed[0][:200] if failed else report[-200:]


def whole() -> int:
    """Check the tree; return the exit status."""
    began = time.monotonic()
    if why := fault_free():
        print(f"too coarse: {why}"[:300])
        return COARSE
    fault_free_s = time.monotonic() - began
    began = time.monotonic()
    for name, command in parts():
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired:
            print(f"{name} (it hangs) after {time.monotonic() - began:.0f} s")
            return KILLED
        if done.returncode:
            why = _reason(done.stdout)
            print(
                f"{name} after {time.monotonic() - began:.0f} s (without faults {fault_free_s:.0f} s): {why}"
            )
            return KILLED
    print(f"nothing after {time.monotonic() - began:.0f} s (without faults {fault_free_s:.0f} s)")
    return SURVIVED


def _reason(output: str) -> str:
    """Return the most informative line of a part's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    failed = [x for x in lines if x.startswith("FAILED")]
    summary = [x for x in lines if ", after " in x or " seed " in x]
    return (failed or summary or lines or ["no output"])[0][:160]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="tests.judge.run", description=__doc__)
    parser.add_argument("--fault-free", action="store_true", help="only the runs without faults")
    parser.add_argument("--level")
    parser.add_argument("--seeds", type=int, default=0)
    asked = parser.parse_args()
    if asked.fault_free:
        print(why := fault_free())
        return COARSE if why else SURVIVED
    return seeds(asked.level, asked.seeds) if asked.level else whole()


if __name__ == "__main__":
    sys.exit(main())
