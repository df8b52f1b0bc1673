"""The whole cluster under swarm faults on fixed seeds; planted mistakes in the real servers are detected."""

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from nyala.common.errors import NotLeader
from nyala.replica.replica import Replica
from tests.enough import enough
from tests.sim.faults.plan import DAMAGE, WHOLE, Swarm, count, draw, missing
from tests.sim.runs.cluster_run import run_cluster
from tests.sim.runs.levels import NOT_AT
from tests.sim.runs.scenario import ScenarioCluster, play, reads_from_paused_leaders
from tests.sim.systems.cluster import OPTIONS
from tests.sim.world.loop import seeded

ROOT = Path(__file__).parents[3]
NOT_HERE = (*NOT_AT["cluster"], *DAMAGE, *WHOLE, "unsynced names undone")
EVERYTHING = Swarm(
    loss_rate=0.01,
    duplicate_rate=0.05,
    straggler_rate=0.02,
    crash_s=1,
    down_s=0.3,
    in_operation_rate=0.8,
    power_cut_rate=0.5,
    everyone_rate=0.1,
    partition_s=2.5,
    partition_length_s=0.7,
    pause_s=4,
    pause_length_s=0.5,
    jump_s=4,
    skew_ms=500,
    slow_rate=0.02,
    transfer_s=5,
)


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(s, marks=pytest.mark.full) for s in (3, 5))])
def test_random_faults_violate_no_guarantee(seed: int):
    outcome = run_cluster(seed, draw(seeded(seed, "swarm")), seconds=8)
    print(dict(count(outcome.trace)), "acknowledged", outcome.history.acknowledged)
    enough(outcome.history.acknowledged > 10 * 8, f"{outcome.history.acknowledged} operations")


@pytest.mark.full
def test_many_kinds_of_fault_together_violate_no_guarantee():
    run_cluster(100, EVERYTHING, seconds=8)


@pytest.mark.full
def test_every_kind_of_fault_together_violates_no_guarantee():
    faults: Counter[str] = Counter()
    acknowledged = 0
    for seed in range(100, 112):
        outcome = run_cluster(seed, EVERYTHING, seconds=8)
        faults += count(outcome.trace)
        acknowledged += outcome.history.acknowledged
        if not missing(faults, but=NOT_HERE):
            break
    print(dict(faults), "acknowledged", acknowledged)
    assert not missing(faults, but=NOT_HERE)
    assert acknowledged > 100


def test_same_seed_gives_same_trace_with_any_hash_seed():
    code = (
        "from tests.sim.runs.cluster_run import run_cluster\n"
        "from tests.sim.swarm.test_random import EVERYTHING\n"
        "print(run_cluster(7, EVERYTHING, seconds=3).trace.digest())\n"
    )
    digests = {_python(code, hash_seed) for hash_seed in ("1", "2")}
    assert len(digests) == 1


def _python(code: str, hash_seed: str) -> str:
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}/src:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.full
def test_deposed_leader_without_read_round_is_detected(monkeypatch: pytest.MonkeyPatch):
    """The planted stale read: a leader that answers without confirming its leadership, in one of some seeds.

    In the gate the same mistake is planted in directed reads (tests/sim/selftests/test_judge.py).
    """

    def start_read(self: Replica, at: int | None, timeout_ms: int) -> asyncio.Future[int]:
        if not self.is_leader:
            raise NotLeader("this replica does not lead")
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(self.status().applied_stamp if at is None else at)
        return done

    monkeypatch.setattr(Replica, "start_read", start_read)
    with pytest.raises(AssertionError, match="not linearizable"):  # noqa: PT012
        for seed in range(1, 17):
            play(reads_from_paused_leaders, seed, workers=6)


def test_acknowledgement_before_sync_is_detected():
    """The planted lost write: the real servers with `wal_sync=never`, and a power cut of all."""

    async def scenario(running: ScenarioCluster) -> None:
        for _ in range(12):
            await running.acknowledged(40)
            for server in running.cluster.servers:
                server.kill(power_cut=True)
            for server in running.cluster.servers:
                server.start()
            await running.leader()

    never = msgspec.structs.replace(OPTIONS, wal_sync="never")
    with pytest.raises(AssertionError, match=r"not linearizable|its disk holds|durable on"):
        play(scenario, options=never)
