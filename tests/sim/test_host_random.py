"""The replica engine under swarm faults: sessions, flushes, recovery, with calls that arrive twice."""

from collections import Counter

from tests.sim.core_cluster import run_core
from tests.sim.faults import count, draw, missing
from tests.sim.host_server import HostServer
from tests.sim.loop import seeded
from tests.sim.test_core_random import CRASHES

SEEDS = range(16)


def test_a_doubled_or_repeated_change_takes_effect_once_under_every_kind_of_fault():
    faults: Counter[str] = Counter()
    acknowledged = 0
    for seed in SEEDS:
        swarm = draw(seeded(seed, "swarm")) if seed % 3 else CRASHES
        outcome = run_core(seed, swarm, seconds=12, make=HostServer)
        faults += count(outcome.trace)
        acknowledged += outcome.history.acknowledged
    print(dict(faults), "acknowledged", acknowledged)
    assert not missing(faults)
    assert acknowledged > 10 * 12 * len(SEEDS)
