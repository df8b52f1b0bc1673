"""Raft's core under swarm faults on fixed seeds; equal traces of one seed; planted mistakes are detected."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.enough import enough
from tests.sim.faults.plan import Swarm, count, draw
from tests.sim.runs.core_run import ask_paused_leaders, run_core
from tests.sim.systems.core_cluster import Make, core, host
from tests.sim.systems.core_server import Mistakes
from tests.sim.systems.stores import WalLog
from tests.sim.world.loop import seeded

ROOT = Path(__file__).parents[3]
SEEDS = range(10)
CRASHES = Swarm(
    crash_s=0.7, down_s=0.2, in_operation_rate=1, everyone_rate=0.1, loss_rate=0.02, slow_rate=0.05
)


def test_histories_are_linearizable_and_invariants_hold_under_drawn_mixtures_of_faults():
    faults: Counter[str] = Counter()
    acknowledged = 0
    for seed in SEEDS:
        servers = 3 if seed % 3 else 5
        swarm = draw(seeded(seed, "swarm")) if seed % 4 else CRASHES
        outcome = run_core(seed, swarm, seconds=12, servers=servers)
        faults += count(outcome.trace)
        acknowledged += outcome.history.acknowledged
    print(dict(faults), "acknowledged", acknowledged)
    enough(acknowledged > 100 * len(SEEDS), f"{acknowledged} operations")


def test_log_recovers_acknowledged_records_from_every_crash():
    faults: Counter[str] = Counter()
    for seed in range(3, 12):
        swarm = CRASHES if seed % 2 else draw(seeded(seed, "swarm"))
        faults += count(run_core(seed, swarm, seconds=10, make=core(store=WalLog)).trace)
    print(dict(faults))
    torn = ("unsynced bytes torn", "unsynced bytes reordered", "unsynced names undone")
    enough(all(faults[kind] for kind in torn), f"crashes that tear: {faults}")


def test_same_seed_gives_the_same_core_trace():
    swarm = draw(seeded(7, "swarm"))
    first, second = (run_core(7, swarm, seconds=5).trace.digest() for _ in range(2))
    assert first == second
    assert run_core(8, swarm, seconds=5).trace.digest() != first


def test_core_trace_is_independent_of_process_hash_seed():
    code = (
        "from tests.sim.runs.core_run import run_core\n"
        "from tests.sim.faults.plan import draw\n"
        "from tests.sim.world.loop import seeded\n"
        "print(run_core(7, draw(seeded(7, 'swarm')), seconds=5).trace.digest())\n"
    )
    digests = {_python(code, hash_seed) for hash_seed in ("1", "2")}
    assert digests == {run_core(7, draw(seeded(7, "swarm")), seconds=5).trace.digest()}


def _python(code: str, hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_planted_stale_read_is_detected():
    with pytest.raises(AssertionError, match="not linearizable"):
        ask_paused_leaders(1, core(Mistakes(stale_reads=True)))


@pytest.mark.parametrize("make", [core(), host], ids=["core", "replica"])
def test_paused_leader_answers_no_stale_read(make: Make):
    ask_paused_leaders(1, make)


def test_planted_acknowledgement_before_slow_sync_is_detected():
    slow = Swarm(slow_rate=1, slow_ms=100)
    with pytest.raises(AssertionError, match=r"acknowledges up to|durable on"):
        run_core(1, slow, seconds=5, make=core(Mistakes(early_acks=True)))


@pytest.mark.full
def test_planted_acknowledgement_before_sync_is_detected_under_crashes():
    swarm = Swarm(crash_s=1.5, down_s=0.2, everyone_rate=0.7, slow_rate=0.5, slow_ms=100)
    for seed in range(30):
        try:
            run_core(seed, swarm, seconds=10, make=core(Mistakes(early_acks=True)))
        except AssertionError as err:
            assert re.search("durable on|acknowledges up to", str(err))  # noqa: PT017
            return
    raise AssertionError("acknowledgements before the sync were not detected in 30 seeds")
