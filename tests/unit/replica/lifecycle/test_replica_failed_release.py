"""A replica that failed, or lost its log, does not keep memory or the shared log."""

import google_crc32c
import pytest

from nyala.common.errors import BadVersion
from nyala.common.options import Options
from nyala.env.tasks import Lane
from nyala.replica.lifecycle import release_log
from nyala.replica.memory import MemoryPart
from nyala.replica.status import State
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from tests.unit.replica.support.replica_support import GROUP, Fleet, scenario
from tests.unit.replica.support.retention_support import STRICT, beside, busy

SMALL = Options(wal_segment_mb=1, raft_quiesce_ms=0)


def memory_of(fleet: Fleet, number: int) -> dict[str, int]:
    """Memory of a group on a server, by part."""
    memory = fleet.host(number).memory
    return {
        str(p): memory.sizes(p).get(GROUP, 0) for p in MemoryPart if memory.sizes(p).get(GROUP, 0)
    }


@scenario()
async def test_failed_replica_releases_its_memory(fleet):
    await fleet.write(b"a 1")
    await fleet.settled()
    machine = fleet.machine(0)
    assert set(memory_of(fleet, 0)) == {"rows", "entries", "sessions"}
    fleet.replica(0).fail(OSError("a page of a data file cannot be read"))
    await fleet.until(lambda: machine.closed, "the machine's files are closed")
    assert memory_of(fleet, 0) == {}
    assert fleet.host(0).memory.used_bytes == 0
    await fleet.write(b"a 1")
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    assert fleet.replica(0).state is State.TOMBSTONED


@scenario()
async def test_replica_failing_during_flush_is_closed_after_flush(fleet):
    await fleet.write(b"a 1")
    await fleet.settled()
    replica, machine = fleet.replica(0), fleet.machine(0)
    fleet.processes[0].env.tasks.delays.compute_us = 500_000
    flusher = replica.running_member().flusher
    fleet.spawn(0, flusher.flush())
    await fleet.until(lambda: flusher.maintenance_stats().running, "a flush is in progress")
    replica.fail(OSError("a page of a data file cannot be read"))
    deleted = fleet.spawn(0, fleet.host(0).delete_replica(GROUP))
    assert not machine.closed
    await fleet.until(lambda: replica.state is State.TOMBSTONED, "the replica is deleted")
    assert machine.closed
    await fleet.until(lambda: deleted, "its data are removed")
    assert deleted == [None]
    assert machine.flush_point.op.index > 0


@scenario(options=SMALL)
async def test_log_of_replica_marked_lost_is_collected(fleet):
    await fleet.write(b"a 1")
    await fleet.settled()
    fleet.processes[0].kill()
    files = fleet.processes[0].disk.mount()
    Superblocks(files, "/data").save(Superblock(GROUP, ReplicaStage.LOST, lost="it was given up"))
    await fleet.boot(0)
    assert fleet.replica(0).state is State.FAILED
    assert "it was given up" in str(fleet.replica(0).error)
    assert fleet.host(0).wal.held_bytes() == {}
    assert fleet.host(0).wal.stats().pinned_by == ()


@scenario(options=SMALL)
async def test_log_of_recoverable_failed_replica_is_kept(fleet):
    await fleet.write(b"a 1")
    await fleet.settled()
    fleet.processes[0].kill()
    files = fleet.processes[0].disk.mount()
    metadata = files.read(f"/data/cmeta/{GROUP}")
    files.remove(f"/data/cmeta/{GROUP}")
    await fleet.boot(0)
    assert fleet.replica(0).state is State.FAILED
    assert fleet.host(0).wal.stats().pinned_by == (GROUP,)
    fleet.processes[0].kill()
    fleet.processes[0].disk.mount().write_atomic(f"/data/cmeta/{GROUP}", metadata)
    await fleet.boot(0)
    await fleet.settled()
    assert fleet.machine(0).sums == {"a": 1}


@pytest.mark.parametrize("restart", [False, True])
def test_damaged_superblock_does_not_anchor_log(restart):
    @scenario(options=STRICT)
    async def steps(fleet):
        await beside(fleet)
        await fleet.write(b"a 1")
        await fleet.settled()
        path = f"/data/superblock/{GROUP}"
        if restart:
            fleet.processes[0].kill()
            fleet.processes[0].disk.flip_bit(path, 30)
            await fleet.boot(0)
        else:
            fleet.processes[0].disk.flip_bit(path, 30)
            fleet.replica(0).fail(OSError("a page of a data file cannot be read"))
        assert fleet.replica(0).state is State.FAILED
        assert max(await busy(fleet)) < 8
        assert GROUP not in fleet.host(0).wal.held_bytes()
        fleet.processes[0].kill()
        await fleet.boot(0)
        assert fleet.replica(0).state is State.FAILED
        assert "has released entries" in str(fleet.replica(0).error)

    steps()


@scenario(options=STRICT)
async def test_superblock_of_newer_version_anchors_log(fleet):
    """The build that wrote it can continue from there."""
    await beside(fleet)
    await fleet.write(b"a 1")
    await fleet.settled()
    fleet.processes[0].kill()
    files, path = fleet.processes[0].disk.mount(), f"/data/superblock/{GROUP}"
    raw = files.read(path)
    body = raw[:8] + (2).to_bytes(4, "little") + raw[12:-4]
    files.write_atomic(path, body + int(google_crc32c.value(body)).to_bytes(4, "little"))
    await fleet.boot(0)
    assert isinstance(fleet.replica(0).error, BadVersion)
    await busy(fleet)
    assert fleet.host(0).wal.held_bytes()[GROUP] > 0
    fleet.processes[0].kill()
    fleet.processes[0].disk.mount().write_atomic(path, raw)
    await fleet.boot(0)
    await fleet.settled()
    assert fleet.machine(0).sums == {"a": 1}


@scenario(options=SMALL)
async def test_deletion_of_failed_replica_while_its_log_is_released_leaves_tombstone(fleet):
    """The superblock with the reason of the log's release must not replace the one with the vote."""
    await fleet.write(b"a 1")
    await fleet.settled()
    replica = fleet.replica(0)
    context, tasks = replica.context, fleet.processes[0].env.tasks
    run, deletion = tasks.run, list[object]()

    async def deleted_meanwhile(lane, fn, *args, **more):
        if lane is Lane.DISK and not deletion:  # before the superblock is read
            deletion.append(fleet.spawn(0, fleet.host(0).delete_replica(GROUP)))
            await fleet.until(lambda: replica.state is State.TOMBSTONED, "the replica is deleted")
        return await run(lane, fn, *args, **more)

    replica.fail(OSError("a page of a data file cannot be read"))
    await fleet.pass_ms(1000)
    tasks.run = deleted_meanwhile
    await fleet.as_(0, release_log(context, replica))
    assert context.superblocks.load(GROUP).stage is ReplicaStage.TOMBSTONED
