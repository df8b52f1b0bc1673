"""Directed scenarios of one replicated group on virtual time: repeatable reads and client sessions."""

import asyncio
from functools import partial

from nyala.raft.messages import PeerBatch
from tests.sim.checkers.durable import Kept
from tests.sim.runs.core_run import CLIENTS, PAUSE_US, WRITES_PER_S
from tests.sim.runs.workload import Failed
from tests.sim.systems.core_cluster import CoreCluster, Make, host
from tests.sim.systems.kv import KvClient
from tests.sim.systems.stores import GROUP
from tests.sim.world.loop import SimLoop


class _ExternalChecks(CoreCluster):
    """A group that is checked by its external behaviour only, not by its durable state."""

    def _kept(self, uuid: str) -> Kept | None:
        return None

    def _sent(self, name: str, batch: PeerBatch) -> None:
        """Skip the comparison with the disk."""


async def fault_free_run(loop: SimLoop, make: Make) -> None:
    """Run clients for six seconds without a fault."""
    cluster = _ExternalChecks(loop, 1, 3, make)
    for server in cluster.servers:
        server.start()
    cluster.add_workers(CLIENTS, PAUSE_US, WRITES_PER_S)
    if make is host:
        cluster.add_snapshots()
    await loop.delay(6_000_000)
    await cluster.progress()


async def started(
    loop: SimLoop, writes: int, make: Make = host, *, seed: int = 2, spares: int = 0
) -> CoreCluster:
    """Start three servers of the replica engine, and clients at work on them."""
    cluster = CoreCluster(loop, seed, 3, make, spares)
    cluster.sessions = True
    for server in cluster.servers:
        server.start()
    cluster.add_workers(5)
    await written(cluster, writes)
    return cluster


async def written(cluster: CoreCluster, more: int) -> None:
    """Wait until that many further operations are acknowledged."""
    target = cluster.history.acknowledged + more
    await cluster.until(partial(cluster.history.reached, target), "writes", 60)


async def snapshot(client: KvClient, at: int | None) -> tuple[int, list[list[int]]] | None:
    """Read everything as of a time; None if no server answers."""
    try:
        return await client.snapshot(at)
    except Failed:
        return None


async def snapshots_of_deposed_leaders(loop: SimLoop) -> None:
    """A read at a deposed leader, at a time read at its successor, returns the same rows or an error."""
    cluster = await started(loop, 30)
    for _ in range(4):
        await cluster.until(lambda: cluster.leader() is not None, "a leader")
        old = cluster.leader()
        assert old is not None
        old.pause()
        await cluster.until(partial(cluster.led_by_another, old), "another leader")
        await written(cluster, 20)
        process = cluster.new_process()
        client = KvClient(process.open(), [s.address for s in cluster.servers if s is not old])
        first = await process.run(snapshot, client, None)
        assert first is not None, "no snapshot of the new leader"
        reads = []
        for _ in range(6):
            process = cluster.new_process()
            only = KvClient(process.open(), [old.address], timeout_ms=1000)
            reads.append(process.run(snapshot, only, first[0]))
        await loop.delay(20_000)
        old.resume()
        for again in await asyncio.gather(*reads):
            assert again in (None, first), f"the snapshot at {first[0]} differs at its old leader"
    await cluster.progress()


async def snapshot_before_clocks_jump_back(loop: SimLoop) -> None:
    """After a power failure of all servers and a jump back of their clocks, no write is below a read time."""
    cluster = await started(loop, 30)
    process = cluster.new_process()
    client = KvClient(process.open(), [s.address for s in cluster.servers], timeout_ms=20_000)
    for _ in range(3):
        first = await process.run(snapshot, client, None)
        assert first is not None, "no snapshot"
        for server in cluster.servers:
            server.kill(power_cut=True)
            server.clock.jump(-1_000_000)
        for server in cluster.servers:
            server.start()
        await written(cluster, 30)
        again = await process.run(snapshot, client, first[0])
        assert again == first, f"the snapshot at {first[0]} has changed"
    await cluster.progress()


async def equal_sessions(cluster: CoreCluster) -> None:
    """Wait until all members have applied the same entries; then their client sessions are equal."""

    def tables() -> list[tuple[object, bytes]]:
        replicas = [
            s.server.host and s.server.host.find(GROUP)
            for s in cluster.servers
            if s.server is not None
        ]
        appliers = [r.member.applier for r in replicas if r and r.member]
        return [(a.applied, a.sessions.dump()) for a in appliers]

    def caught_up() -> bool:
        found = tables()
        return len(found) == len(cluster.servers) and len({at for at, _ in found}) == 1

    await cluster.until(caught_up, "the same log on all members", 60)
    assert len({table for _, table in tables()}) == 1, "replicas have different client sessions"


async def equal_sessions_after_restart(loop: SimLoop) -> None:
    """Client sessions are a function of the log: the same bytes on all replicas."""
    cluster = await started(loop, 60)
    for server in cluster.servers:
        server.kill(power_cut=True)
    for server in cluster.servers:
        server.start()
    await written(cluster, 60)
    await cluster.progress()

    await equal_sessions(cluster)
