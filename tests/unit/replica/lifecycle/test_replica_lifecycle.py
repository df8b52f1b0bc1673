"""Creation and deletion of a replica: idempotence, tombstones, faults of disk and process."""

import pytest

from nyala.common.errors import (
    AlreadyPresent,
    InvalidArgument,
    NotFound,
    OutcomeUnknown,
    Unavailable,
)
from nyala.replica.status import State
from nyala.replica.superblock import ReplicaStage, Superblocks
from tests.unit.replica.support.by_hand import OTHER
from tests.unit.replica.support.replica_support import GROUP, AddingMachine, scenario


@scenario()
async def test_replica_is_created_once_and_only_for_members(fleet):
    with pytest.raises(AlreadyPresent):
        await fleet.create(0, GROUP)
    with pytest.raises(InvalidArgument, match="not in the configuration"):
        await fleet.create(0, OTHER, fleet.configuration([1, 2]))
    with pytest.raises(NotFound):
        fleet.host(0).get(OTHER)
    assert fleet.host(0).find(OTHER) is None


@scenario(start=False)
async def test_concurrent_create_orders_create_one_replica(fleet):
    await fleet.boot(0)
    one = fleet.spawn(0, fleet.create(0, GROUP))
    two = fleet.spawn(0, fleet.create(0, GROUP))
    await fleet.until(lambda: one and two, "both answered")
    assert sorted(type(x[0]).__name__ for x in (one, two)) == ["Replica", "Unavailable"]


@scenario(servers=1)
async def test_full_disk_refuses_new_replica_and_affects_no_other(fleet):
    await fleet.write(b"k 1")
    disk = fleet.processes[0].disk
    disk.faults.capacity_bytes = disk.used_bytes() + 300
    with pytest.raises(OSError, match="space"):
        await fleet.as_(
            0,
            fleet.host(0).create_replica(OTHER, fleet.config, lambda d: _hog(fleet, d)),
        )
    assert fleet.host(0).find(OTHER) is None
    disk.faults.capacity_bytes = None
    assert (await fleet.write(b"k 1")).result == b"2"
    await fleet.create(0, OTHER)
    assert (await fleet.write(b"k 1", group=OTHER)).result == b"1"


def _hog(fleet, directory):
    files = fleet.processes[0].env.files
    files.write_new(f"{directory}/hog", [b"x" * 1000])
    return AddingMachine(files, directory)


@scenario()
async def test_deleted_replica_keeps_only_its_vote_and_last_op_id(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    status = fleet.replica(0).status()
    machine = fleet.machine(0)
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    assert machine.closed
    disk = fleet.processes[0].env.files
    for _ in range(2):
        block = Superblocks(disk, "/data").load(GROUP)
        assert block is not None
        assert block.stage is ReplicaStage.TOMBSTONED
        assert block.last == status.last
        assert block.hard_state.term == status.term
        assert disk.list("/data/data") == []
        replica = fleet.replica(0)
        assert (replica.state, replica.status().term) == (State.TOMBSTONED, status.term)
        with pytest.raises(NotFound):
            await fleet.as_(0, fleet.call(0, b"k 1"))
        with pytest.raises(AlreadyPresent):
            await fleet.create(0, GROUP)
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
        fleet.processes[0].kill(power_cut=True)
        await fleet.restart(0)
        disk = fleet.processes[0].env.files
    assert (await fleet.as_(n := await fleet.leader(), fleet.call(n, b"k 1"))).result == b"2"


@scenario()
async def test_deletion_refused_by_disk_is_reported_and_retryable(fleet):
    await fleet.write(b"k 1")
    disk = fleet.processes[0].disk
    disk.faults.capacity_bytes = disk.used_bytes()
    with pytest.raises(OSError, match="space"):
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    replica = fleet.replica(0)
    assert replica.state is State.FAILED
    assert "delete it again" in replica.status().error
    disk.faults.capacity_bytes = None
    term = replica.status().term
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    assert (replica.state, replica.status().error) == (State.TOMBSTONED, "")
    assert replica.tombstone.superblock.votes, "the tombstone has the vote"
    assert replica.status().term == term


@pytest.mark.parametrize("step", range(1, 12))
def test_crash_during_deletion_leaves_replica_or_tombstone(step):
    @scenario(servers=1, groups=(GROUP, OTHER))
    async def steps(fleet):
        await fleet.write(b"k 1")
        await fleet.write(b"k 5", group=OTHER)
        process = fleet.processes[0]
        process.disk.die_after(step)
        deleted = fleet.spawn(0, fleet.host(0).delete_replica(GROUP))
        await fleet.until(lambda: deleted or not process.alive, "done or dead")
        done = process.alive
        process.kill()
        process.power_cut()
        await fleet.restart(0)
        state = fleet.replica(0).state
        assert state is State.TOMBSTONED or not done
        if state is State.TOMBSTONED:
            assert process.env.files.list("/data/data") == [OTHER]
        else:
            assert (await fleet.write(b"k 1")).result == b"2"
        assert (await fleet.write(b"k 1", group=OTHER)).result == b"6"

    steps()


@scenario()
async def test_deletion_ends_pending_writes_with_unknown_outcome(fleet):
    leader = await fleet.leader()
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in range(3) if n != leader])
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1"))
    reading = fleet.spawn(leader, fleet.replica(leader).read_point(None, 5000))
    await fleet.pass_ms(5)
    await fleet.as_(leader, fleet.host(leader).delete_replica(GROUP))
    await fleet.pass_ms(1)
    assert isinstance(answer[0], OutcomeUnknown)
    assert isinstance(reading[0], Unavailable)
