"""One run of one seed on one group: a safety phase under faults, a healing phase that requires progress."""

import asyncio
import functools
from dataclasses import replace

from tests.sim.core_cluster import ENGINES, CoreCluster, Make, host, moving
from tests.sim.faults import Swarm
from tests.sim.kv import KvClient
from tests.sim.loop import SimLoop, run, seeded
from tests.sim.members import Members
from tests.sim.moves import Mover
from tests.sim.nemesis import Nemesis
from tests.sim.outcome import Outcome
from tests.sim.trace import Recorder
from tests.sim.workload import Worker

CLIENTS = 8
PAUSE_US = 500_000
WRITES_PER_S = 12
"""Clients hurry while they are below this; with these pauses alone they write about 10 times a second."""
EVENTS_PER_S = 40_000
"""Ten times what the busiest run makes in a second: more is a livelock."""


MOVE_S = 0.7
HANDS = 2
"""Two at a time move replicas of one group, each with a step every so often."""
MOVING_SPARES = 3


def _fitting(swarm: Swarm, make: Make | None) -> Swarm:
    """Return what of a mixture a kind of server can bear."""
    if make is host:
        return swarm
    full = swarm.full_s if make is moving else 0.0
    return replace(swarm.without_damage(), full_s=full)


def most_events(seconds: float) -> int:
    """Return how many events a run may make, with a minute for its healing phase."""
    return round(EVENTS_PER_S * (seconds + 60))


async def story(
    loop: SimLoop,
    seed: int,
    swarm: Swarm,
    *,
    seconds: float,
    servers: int,
    make: Make | None,
) -> Outcome:
    """Start, work under faults, heal, make progress, check."""
    spares = MOVING_SPARES if make is moving else 1 if swarm.change_s else 0
    cluster = CoreCluster(loop, seed, servers, make, spares)
    swarm = _fitting(swarm, make)
    rng = seeded(seed, "nemesis")
    prone = []
    if swarm.prone and make is host:
        prone = rng.sample(cluster.servers, (servers - 1) // 2)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(CLIENTS, PAUSE_US, WRITES_PER_S)
    if make in ENGINES:
        cluster.add_snapshots()
    mover = Mover(cluster, seeded(seed, "moves")) if make is moving else None
    names = [s.name for s in (*cluster.servers, *cluster.clients)]
    uuids = {str(cluster.members[s.name].uuid) for s in prone}
    members = Members(cluster, cluster.members, uuids, seeded(seed, "members"))
    changes = [(swarm.change_s, members.change)]
    if mover is not None:
        changes = [(MOVE_S, mover.step)] * HANDS
    nemesis = Nemesis(
        cluster.network,
        cluster.servers,
        names,
        swarm,
        rng,
        cluster.leader,
        prone,
        [*changes, (swarm.transfer_s, members.transfer)],
    )
    nemesis.start()
    await loop.delay(seconds * 1e6)
    await nemesis.heal()
    if mover is not None:
        await mover.finish()
    await cluster.progress()
    checks = cluster.watch.checks + cluster.promises.checks + cluster.applied.checks
    checks["snapshots read again"] = sum(s.repeated for s in cluster.snapshots)
    checks["stale reads"] = sum(s.stale for s in cluster.snapshots)
    checks["operations linearized"] = sum(len(ops) for ops in cluster.history.ops.values())
    return Outcome(
        loop.trace,
        cluster.history,
        loop.events,
        loop.time(),
        len(cluster.watch.leaders),
        len(cluster.workers),
        checks,
    )


def run_core(
    seed: int,
    swarm: Swarm,
    *,
    seconds: float = 20,
    servers: int = 3,
    make: Make | None = None,
    recorder: Recorder | None = None,
) -> Outcome:
    """Run one seed on one group."""
    return run(
        lambda loop: story(loop, seed, swarm, seconds=seconds, servers=servers, make=make),
        max_events=most_events(seconds),
        recorder=recorder,
    )


async def _paused(loop: SimLoop, seed: int, make: Make) -> None:
    cluster = CoreCluster(loop, seed, 3, make)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(5)
    history = cluster.history
    for _ in range(8):
        await cluster.until(lambda: cluster.leader() is not None, "a leader")
        old = cluster.leader()
        assert old is not None
        old.pause()
        await cluster.until(functools.partial(cluster.led_by_another, old), "another leader")
        target = history.acknowledged + 20
        await cluster.until(functools.partial(history.reached, target), "writes")
        asking = []
        for _ in range(10):
            process = cluster.new_process()
            only = KvClient(process.open(), [old.address], timeout_ms=1000)
            asker = Worker(loop, only, history, seeded(seed, process.name))
            asking.append(process.run(asker.read, history.pick(cluster.network.rng)))
        await loop.delay(20_000)
        old.resume()
        await asyncio.gather(*asking)
    await cluster.progress()


def ask_paused_leaders(seed: int, make: Make) -> None:
    """Ask leaders that were paused, and others followed, for what the others have changed since."""
    run(lambda loop: _paused(loop, seed, make))
