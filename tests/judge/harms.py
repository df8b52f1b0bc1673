"""Directed stories of one replicated group on virtual time, one harm in each: away, rotten, ahead, late."""

from msgspec.structs import replace as with_options

from nyala.raft.changes import Change, ChangeKind
from nyala.wal.format import RecordKind
from nyala.wal.scan import scan
from nyala.wal.segment import sequence_of
from tests.judge.stages import remembered_alike, snapshot, started, written
from tests.sim.runs.workload import Worker
from tests.sim.systems.core_cluster import CoreCluster, hosts
from tests.sim.systems.host_server import OPTIONS, HostServer
from tests.sim.systems.kv import KvClient
from tests.sim.world.loop import SimLoop, seeded
from tests.sim.world.process import SimProcess

SEGMENT_WRITES = 44
"""About so many entries fill a segment of a `_LargeServer`."""


class _LargeServer(HostServer):
    """Entries so large that the log has many segments, and next to none of them in memory."""

    options = with_options(OPTIONS, wal_retain_mb=1, raft_cache_bytes=64 << 10)
    padding = 24_000


class _ForgetfulServer(HostServer):
    """Results are soon forgotten; nothing is flushed, so that a start replays everything."""

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


# ---- a log that is collected ---------------------------------------------------------------------------


async def collected_while_one_is_away(loop: SimLoop) -> None:
    """Segments fill while a follower is down; all restart; it gets what it lacks from somebody's log."""
    cluster = await started(loop, SEGMENT_WRITES, hosts(_LargeServer))
    away = _others(cluster, await _leader(cluster))[0]
    for more in (0, 25):
        await written(cluster, more)
        away.kill(power_cut=True)
        await written(cluster, 9 * SEGMENT_WRITES)
        for server in cluster.servers:
            server.kill(power_cut=True)
            server.start()
        await written(cluster, 20)
        await cluster.until(lambda: _together(cluster), f"{away.name} catches up", 15)
    await cluster.progress()


def _together(cluster: CoreCluster) -> bool:
    """Return whether all members are within a few entries of each other."""
    nodes = [node for _, node in cluster.nodes()]
    lasts = [node.core.log.committed for node in nodes]
    return len(lasts) == len(cluster.servers) and max(lasts) - min(lasts) < 10


async def collected_with_a_configuration(loop: SimLoop) -> None:
    """The entry of a configuration goes with its segment; after a power cut all still go by it."""
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


# ---- a disk that rots ----------------------------------------------------------------------------------


async def rot_while_one_lags(loop: SimLoop, seed: int = 1) -> None:
    """Of two that have the newest entries one loses a bit of its log, the other is down when all start."""
    cluster = await started(loop, 40, seed=seed)
    leader = await _leader(cluster)
    rotten, lagging = _others(cluster, leader)
    lagging.kill(power_cut=True)
    await written(cluster, 45)
    await cluster.until(lambda: _unflushed(rotten) > 12, "entries that only the log has")
    cut = rotten.server.machine.cut.op.index
    rotten.kill(power_cut=True)
    leader.kill(power_cut=True)
    _rot(rotten, cut)
    lagging.start()
    rotten.start()
    await loop.delay(10_000_000)
    leader.start()
    await written(cluster, 20)
    await cluster.progress()


def _unflushed(server: SimProcess) -> int:
    node = server.server.node
    return int(node.core.log.committed - server.server.machine.cut.op.index)


def _rot(server: SimProcess, above: int) -> None:
    """Turn a bit in an entry that is surely durable: later records prove it."""
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
            victim = proven[len(proven) // 2]
            server.disk.flip_bit(path, victim.offset + victim.length - 1)
            return
    raise AssertionError(f"{server.name} has no entry above {above} that could rot")


# ---- clocks --------------------------------------------------------------------------------------------


async def read_from_a_leader_ahead(loop: SimLoop) -> None:
    """A leader whose clock is ahead is read, and dies; what its successor stamps is later all the same."""
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


async def remembered_by_stamps(loop: SimLoop) -> None:
    """Results expire by the stamps of entries: whoever replays them much later remembers what others do."""
    cluster = await started(loop, 30, hosts(_ForgetfulServer))
    for worker in cluster.workers:
        worker.stopped = True
    await loop.delay(10_000_000)
    for server in cluster.servers:
        server.kill(power_cut=True)
        server.clock.jump(3_000_000)
        server.start()
        await remembered_alike(cluster)
    cluster.workers.clear()
    await cluster.progress()
