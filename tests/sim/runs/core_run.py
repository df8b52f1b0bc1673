"""One run of one seed on one group: a safety phase under faults, a healing phase that requires progress."""

import asyncio
import functools
from dataclasses import replace

from nyala.common.ids import ServerUuid
from tests.enough import enough
from tests.sim.checkers.outcome import Outcome
from tests.sim.faults.membership_changes import Members
from tests.sim.faults.nemesis import Nemesis
from tests.sim.faults.plan import Swarm
from tests.sim.faults.replica_moves import Mover
from tests.sim.runs.workload import Worker
from tests.sim.systems.core_cluster import ENGINES, CoreCluster, Make, host, moving
from tests.sim.systems.kv import KvClient
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.process import SimProcess
from tests.sim.world.trace import Recorder

CLIENTS = 8
PAUSE_US = 500_000
WRITES_PER_S = 12
"""Writes per second below which clients pause only briefly; otherwise each writes 10 times per second."""
EVENTS_PER_S = 40_000
"""Events per second, ten times those of the busiest run; more is a livelock."""


OUTVOTED = 6
APPLIES_US = 150_000.0
MOVE_S = 0.7
HANDS = 2
"""Number of concurrent movers of one group's replicas, and the time between their steps."""
MOVING_SPARES = 3


def _fitting(swarm: Swarm, make: Make | None) -> Swarm:
    """Return the faults of a mixture that a kind of server supports."""
    if make is host:
        return swarm
    bare = swarm.without_damage()
    return replace(bare, full_s=swarm.full_s, no_room_s=swarm.no_room_s) if make is moving else bare


def most_events(seconds: float) -> int:
    """Return the limit of events of a run, with a minute for its healing phase."""
    return round(EVENTS_PER_S * (seconds + 60))


async def scenario(
    loop: SimLoop,
    seed: int,
    swarm: Swarm,
    *,
    seconds: float,
    servers: int,
    make: Make | None,
) -> Outcome:
    """Start, run under faults, heal, require progress, check."""
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
    checks = cluster.watch.checks + cluster.sent_messages.checks + cluster.applied.checks
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
        lambda loop: scenario(loop, seed, swarm, seconds=seconds, servers=servers, make=make),
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


async def _outvoted(loop: SimLoop, seed: int, make: Make) -> None:
    cluster = CoreCluster(loop, seed, 3, make)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(5)
    history, rng, asked = cluster.history, seeded(seed, "outvoted"), 0
    for _ in range(OUTVOTED):
        await cluster.until(lambda: cluster.leader() is not None, "a leader")
        old = cluster.leader()
        assert old is not None
        others = [s for s in cluster.servers if s is not old]
        apply_us, old.delays.apply_us = old.delays.apply_us, APPLIES_US
        await loop.delay(100_000)
        await old.run(_handed_over, old, cluster.members[rng.choice(others).name].uuid)
        cluster.network.cut([s.name for s in others], [old.name])
        end = loop.time() + 1
        while not cluster.led_by_another(old) and loop.time() < end:
            await loop.delay(1000)
        working = [_asker(cluster, others) for _ in range(3)]
        await asyncio.gather(*(process.run(_works, one) for process, one in working))
        node = cluster.node(old)
        asked += cluster.led_by_another(old) and node is not None and node.is_leader
        asking = [
            process.run(one.read, key)
            for key in history.active * 3
            for process, one in (_asker(cluster, [old]),)
        ]
        await asyncio.gather(*asking)
        old.delays.apply_us = apply_us
        cluster.network.heal()
        await loop.delay(500_000)
    enough(asked >= OUTVOTED // 2, f"{asked} led at the same time as another server")
    await cluster.progress()


def _asker(cluster: CoreCluster, servers: list[SimProcess]) -> tuple[SimProcess, Worker]:
    """Return a client that knows only these servers."""
    process = cluster.new_process()
    client = KvClient(
        process.open(), [s.address for s in servers], timeout_ms=1000, sessions=cluster.sessions
    )
    return process, Worker(
        cluster.loop, client, cluster.history, seeded(cluster.seed, process.name)
    )


async def _works(worker: Worker) -> None:
    for _ in range(8):
        await worker.once()


async def _handed_over(leader: SimProcess, to: ServerUuid) -> None:
    leader.server.transfer(to)


def ask_outvoted_leaders(seed: int, make: Make) -> None:
    """Read at former leaders that do not know of a transfer what others have changed since."""
    run(lambda loop: _outvoted(loop, seed, make))


def ask_paused_leaders(seed: int, make: Make) -> None:
    """Read at former leaders, paused and replaced, what others have changed since."""
    run(lambda loop: _paused(loop, seed, make))
