"""Directed scenarios of one group on virtual time: one fault of a server, disk or clock in each."""

from msgspec.structs import replace as with_options

from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.wal.segments.format import RecordKind
from nyala.wal.segments.scan import scan
from nyala.wal.segments.segment import sequence_of
from tests.judge.directed_clients import equal_sessions, snapshot, started, written
from tests.sim.runs.workload import Worker
from tests.sim.systems.core_cluster import CoreCluster, hosts
from tests.sim.systems.host_server import OPTIONS, HostServer
from tests.sim.systems.kv import KvClient
from tests.sim.world.loop import SimLoop, seeded
from tests.sim.world.process import SimProcess

SEGMENT_WRITES = 44
"""Approximate number of entries in a segment of a `_LargeServer`."""


class _LargeServer(HostServer):
    """A server whose entries are so large that the log has many segments, and few entries are in memory."""

    options = with_options(OPTIONS, wal_retain_mb=1, raft_cache_bytes=64 << 10)
    padding = 24_000


class _ShortSessionsServer(HostServer):
    """A server whose results expire early; it flushes nothing, so that a start replays the whole log."""

    options = with_options(
        OPTIONS, client_result_ttl_s=5, flush_bytes=1 << 20, flush_log_bytes=1 << 20
    )


async def _leader(cluster: CoreCluster, but: SimProcess | None = None) -> SimProcess:
    await cluster.until(lambda: cluster.leader() not in (None, but), "a leader")
    found = cluster.leader()
    assert found is not None
    return found


def _others(cluster: CoreCluster, leader: SimProcess) -> list[SimProcess]:
    return [s for s in cluster.servers if s is not leader and s.alive]


# ---- collection of the log ---------------------------------------------------------------------------


async def log_collected_while_one_is_down(loop: SimLoop) -> None:
    """Segments fill while a follower is down; all restart; it gets the entries from another member's log."""
    cluster = await started(loop, SEGMENT_WRITES, hosts(_LargeServer))
    absent = _others(cluster, await _leader(cluster))[0]
    for more in (0, 25):
        await written(cluster, more)
        absent.kill(power_cut=True)
        await written(cluster, 9 * SEGMENT_WRITES)
        for server in cluster.servers:
            server.kill(power_cut=True)
            server.start()
        await written(cluster, 20)
        await cluster.until(lambda: _caught_up(cluster), f"{absent.name} catches up", 15)
    await cluster.progress()


def _caught_up(cluster: CoreCluster) -> bool:
    """Return whether all members are within a few entries of each other."""
    nodes = [node for _, node in cluster.nodes()]
    lasts = [node.core.log.committed for node in nodes]
    return len(lasts) == len(cluster.servers) and max(lasts) - min(lasts) < 10


async def configuration_collected_with_its_segment(loop: SimLoop) -> None:
    """The segment with a configuration's entry is collected; all members use it after a power failure."""
    cluster = await started(loop, 20, hosts(_LargeServer), spares=1)
    spare = cluster.members[cluster.servers[3].name]
    for kind in (ChangeKind.ADD, ChangeKind.REMOVE):
        leader = await _leader(cluster)
        await leader.run(leader.server.change_config, [Change(kind, spare)], None)
        agreed = leader.server.node.core.configs.committed.id
        await written(cluster, 9 * SEGMENT_WRITES)
        for server in cluster.servers:
            server.kill(power_cut=True)
            server.start()
        members = cluster.servers[: 4 if kind is ChangeKind.ADD else 3]
        await cluster.until(lambda m=members: all(map(cluster.node, m)), "a start")  # type: ignore[misc]
        for server in members:
            node = cluster.node(server)
            assert node is not None
            active = node.core.configs.active.id
            assert active.index >= agreed.index, f"{server.name} is back at {active} from {agreed}"
        await written(cluster, 20)
    await cluster.progress()


# ---- bit flips -----------------------------------------------------------------------------------------


async def bit_flip_while_one_lags(loop: SimLoop, seed: int = 1) -> None:
    """Of two members with the newest entries one has a bit flip in its log, the other starts late."""
    cluster = await started(loop, 40, seed=seed)
    leader = await _leader(cluster)
    damaged, lagging = _others(cluster, leader)
    lagging.kill(power_cut=True)
    await written(cluster, 45)
    await cluster.until(lambda: _unflushed(damaged) > 12, "enough entries are only in the log")
    cut = damaged.server.machine.flush_point.op.index
    damaged.kill(power_cut=True)
    leader.kill(power_cut=True)
    _flip_bit(damaged, cut)
    lagging.start()
    damaged.start()
    await loop.delay(10_000_000)
    leader.start()
    await written(cluster, 20)
    await cluster.progress()


def _unflushed(server: SimProcess) -> int:
    node = server.server.node
    return int(node.core.log.committed - server.server.machine.flush_point.op.index)


def _flip_bit(server: SimProcess, above: int) -> None:
    """Flip a bit in an entry that later records prove to be durable."""
    folder = "/data/wal"
    for name in reversed(server.disk.mount().list(folder)):
        sequence = sequence_of(name)
        if sequence is None:
            continue
        path = f"{folder}/{name}"
        found = scan(server.disk.mount().read(path), path, sequence)
        proven = [
            r
            for r in found.records
            if r.kind is RecordKind.ENTRY
            and r.index > above
            and r.offset + r.length <= found.proven.offset
        ]
        if proven:
            chosen = proven[len(proven) // 2]
            server.disk.flip_bit(path, chosen.offset + chosen.length - 1)
            return
    raise AssertionError(f"{server.name} has no entry above {above} in which to flip a bit")


# ---- clocks --------------------------------------------------------------------------------------------


async def read_from_leader_with_clock_ahead(loop: SimLoop) -> None:
    """A leader whose clock is ahead serves a read and crashes; its successor's timestamps are later."""
    cluster = await started(loop, 20)
    for worker in cluster.workers:
        worker.stopped = True
    one = Worker(loop, cluster.client(), cluster.history, seeded(1, "one"))
    for ahead_us in (2_000_000, 4_000_000, 6_000_000):
        await loop.delay(1_000_000)
        leader = await _leader(cluster)
        leader.clock.jump(ahead_us)
        process = cluster.new_process()
        client = KvClient(process.open(), [s.address for s in cluster.servers], timeout_ms=20_000)
        first = await process.run(snapshot, client, None)
        assert first is not None, "no snapshot"
        leader.kill(power_cut=True)
        await _leader(cluster, but=leader)
        for _ in range(12):
            await one.once()
        again = await process.run(snapshot, client, first[0])
        assert again == first, f"the snapshot at {first[0]} has changed"
        leader.clock.jump(-ahead_us)
        leader.start()
    cluster.workers.clear()
    await cluster.progress()


async def sessions_expire_by_timestamps(loop: SimLoop) -> None:
    """Results expire by the timestamps of entries: a much later replay gives the same sessions."""
    cluster = await started(loop, 30, hosts(_ShortSessionsServer))
    for worker in cluster.workers:
        worker.stopped = True
    await loop.delay(10_000_000)
    for server in cluster.servers:
        server.kill(power_cut=True)
        server.clock.jump(3_000_000)
        server.start()
        await equal_sessions(cluster)
    cluster.workers.clear()
    await cluster.progress()
