"""Raft's core under swarm faults on fixed seeds; the same trace twice; planted mistakes are caught."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sim.core_cluster import core, run_core
from tests.sim.core_server import Mistakes
from tests.sim.faults import KINDS, Swarm, count, draw
from tests.sim.loop import seeded
from tests.sim.stores import WalLog

ROOT = Path(__file__).parents[2]
SEEDS = range(24)
CRASHES = Swarm(
    crash_s=0.7, down_s=0.2, in_operation_rate=1, everyone_rate=0.1, loss_rate=0.02, slow_rate=0.05
)
NOT_HERE = {"call doubled", "unsynced names undone"}
"""Nothing makes a call idempotent at this level, and the only file is made once."""


def test_histories_are_linearizable_and_invariants_hold_under_every_kind_of_fault():
    faults: Counter[str] = Counter()
    acknowledged = 0
    for seed in SEEDS:
        servers = 3 if seed % 3 else 5
        swarm = draw(seeded(seed, "swarm")) if seed % 4 else CRASHES
        outcome = run_core(seed, swarm, seconds=12, servers=servers)
        faults += count(outcome.trace)
        acknowledged += outcome.history.acknowledged
    print(dict(faults), "acknowledged", acknowledged)
    assert not [k for k in KINDS if not faults[k] and k not in NOT_HERE]
    assert acknowledged > 10 * 12 * len(SEEDS)


def test_the_log_recovers_from_every_crash_with_what_was_acknowledged():
    faults: Counter[str] = Counter()
    for seed in range(8):
        swarm = CRASHES if seed % 2 else draw(seeded(seed, "swarm"))
        faults += count(run_core(seed, swarm, seconds=10, make=core(store=WalLog)).trace)
    print(dict(faults))
    torn = ("unsynced bytes torn", "unsynced bytes reordered", "unsynced names undone")
    assert all(faults[kind] for kind in torn)


def test_one_seed_gives_one_trace():
    swarm = draw(seeded(7, "swarm"))
    first, second = (run_core(7, swarm, seconds=5).trace.digest() for _ in range(2))
    assert first == second
    assert run_core(8, swarm, seconds=5).trace.digest() != first


def test_the_trace_does_not_depend_on_the_hash_seed_of_the_process():
    code = (
        "from tests.sim.core_cluster import run_core\n"
        "from tests.sim.faults import draw\n"
        "from tests.sim.loop import seeded\n"
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


@pytest.mark.parametrize(
    ("mistakes", "swarm", "caught_by"),
    [
        (
            Mistakes(stale_reads=True),
            Swarm(pause_s=2, pause_length_s=2, leader_rate=1, partition_s=4),
            "not linearizable",
        ),
        (
            Mistakes(early_acks=True),
            Swarm(crash_s=1.5, down_s=0.2, everyone_rate=0.7, slow_rate=0.5, slow_ms=100),
            "became|not linearizable|do not match|committed",
        ),
    ],
    ids=["stale read", "lost write"],
)
def test_a_planted_mistake_is_caught(mistakes: Mistakes, swarm: Swarm, caught_by: str):
    for seed in range(40):
        try:
            run_core(seed, swarm, seconds=10, make=core(mistakes))
        except AssertionError as err:
            with pytest.raises(AssertionError, match=caught_by):
                raise err
            return
    raise AssertionError(f"{mistakes} was not caught in 40 seeds")
