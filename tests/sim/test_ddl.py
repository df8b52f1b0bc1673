"""Definitions under faults of masters and tablet servers: the catalog's invariants and a model of it."""

import pytest

from tests.sim.cluster import SimCluster
from tests.sim.ddl import CatalogWatch, define, orphan_lives, plant_orphan, settled
from tests.sim.ddl_model import Model
from tests.sim.faults import Swarm
from tests.sim.loop import run, seeded
from tests.sim.nemesis import Nemesis

SWARM = Swarm(
    crash_s=2.0, down_s=0.7, leader_rate=0.6, power_cut_rate=0.5, partition_s=3.0,
    partition_length_s=1.5, pause_s=6.0, pause_length_s=1.0, loss_rate=0.01, duplicate_rate=0.02,
)  # fmt: skip
CLIENTS = 5


def run_ddl(seed, seconds):
    async def story(loop):
        cluster = SimCluster(loop, seed)
        core = await cluster.start()
        await plant_orphan(cluster.tservers[0])
        model, watch = Model(), CatalogWatch(cluster)
        definers, working, looking = await define(loop, cluster, model, CLIENTS, watch)
        names = [p.name for p in (*cluster.servers, *cluster.clients)]
        rng = seeded(seed, "nemesis")
        nemesis = Nemesis(
            cluster.network, cluster.servers, names, SWARM, rng, cluster.leader_master
        )
        nemesis.start()
        await loop.delay(seconds * 1e6)
        await nemesis.heal()
        for definer in definers:
            definer.stopped = True
        for work in working:
            await work
        await cluster.run(cluster.clients[0], settled, core, model)
        await cluster.until(lambda: orphan_lives(cluster.tservers[0]), "what is nobody's")
        watch.look()
        looking.cancel()
        cluster.look()
        return model, watch.checks, loop.trace

    return run(story, max_time_s=seconds + 300, max_events=20_000_000)


@pytest.mark.row("S0.46", "S0.50")
@pytest.mark.parametrize("seed", [1, 2])
def test_tables_are_what_their_clients_were_told(seed):
    seconds = 15
    model, checks, trace = run_ddl(seed, seconds)
    assert model.acknowledged >= seconds, "one acknowledged definition a second"
    assert trace.counts["kill"] + trace.counts["power_cut"] > 2
    assert min(checks["catalog whole"], checks["memory equals disk"]) > 10
    assert checks["deletions"]
