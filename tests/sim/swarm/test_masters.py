"""Masters are added and removed under faults while tables are defined: no acknowledged definition is lost."""

from collections import Counter

import pytest

from tests.sim.checkers.ddl_model import Model
from tests.sim.checkers.ddl_rules import CatalogWatch
from tests.sim.faults.master_changes import Changer, new_master
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.runs.ddl import define, settled
from tests.sim.systems.cluster import SimCluster
from tests.sim.world.loop import run, seeded

SWARM = Swarm(
    crash_s=2.0, down_s=0.5, leader_rate=0.5, power_cut_rate=0.5, partition_s=4.0,
    partition_length_s=1.0, loss_rate=0.01, duplicate_rate=0.02,
)  # fmt: skip
SPARE = 2


def run_masters(seed, seconds, definers=2):
    async def scenario(loop):
        cluster = SimCluster(loop, seed)
        core = await cluster.start()
        known = [m.address for m in cluster.masters]
        for _ in range(SPARE):
            new_master(cluster, *known).start()
        model, watch = Model(), CatalogWatch(cluster)
        working, tasks = await define(loop, cluster, model, definers, watch, 250_000)
        changer = Changer(cluster, seeded(seed, "changer"))
        changing = loop.create_task(changer.run())
        names = [p.name for p in (*cluster.servers, *cluster.clients)]
        nemesis = Nemesis(
            cluster.network, cluster.masters, names, SWARM, seeded(seed, "nemesis"),
            cluster.leader_master,
        )  # fmt: skip
        nemesis.start()
        await loop.delay(seconds * 1e6)
        await nemesis.heal()
        changer.stopped = True
        await changing
        for definer in working:
            definer.stopped = True
        for task in tasks:
            await task
        await changer.finish()
        await cluster.run(cluster.clients[0], settled, core, model)
        watch.look()
        cluster.look()
        return model, changer.changed, loop.trace

    return run(scenario, max_time_s=seconds + 600, max_events=20_000_000)


@pytest.mark.parametrize("seed", [4])
def test_definitions_hold_while_masters_are_added_and_removed_under_faults(seed):
    run_masters(seed, seconds=12)


@pytest.mark.full
def test_masters_are_added_removed_and_killed_often():
    changes, faults, acknowledged = Counter[str](), Counter[str](), 0
    for seed in range(1, 11):
        model, changed, trace = run_masters(seed, seconds=12)
        changes += changed
        faults += trace.counts
        acknowledged += model.acknowledged
    print(changes, faults, acknowledged)
    assert acknowledged >= 40
    assert changes["add"] >= 8
    assert changes["remove"] >= 8
    assert faults["kill"]
    assert faults["power_cut"]
