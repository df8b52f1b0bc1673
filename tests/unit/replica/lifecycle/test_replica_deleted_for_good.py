"""Deletion for good: nothing of a replica stays, wherever it crashes, and nothing creates it again."""

import asyncio

import pytest

from nyala.common.errors import NotFound, NyalaError
from nyala.common.options import Options
from nyala.raft.messages import PeerBatch, RequestVote
from nyala.replica import registry
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.status import State
from nyala.wal.segments.segment import SegmentWriter
from tests.unit.replica.support.copy_support import scenario as copy_scenario
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

FOLDERS = ("superblock", "cmeta", "data", "copy")


def traces(fleet):
    """Return the files of the group on server 0."""
    files = fleet.processes[0].env.files
    return [f for f in FOLDERS if any(GROUP in n for n in files.list(f"/data/{f}"))]


async def filled(fleet, *, tombstone=False):
    await fleet.write(b"k 1")
    await fleet.settled()
    if tombstone:
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))


@pytest.mark.parametrize("tombstone", [False, True])
def test_nothing_of_a_replica_deleted_for_good_stays(tombstone):
    @scenario()
    async def steps(fleet):
        await filled(fleet, tombstone=tombstone)
        assert traces(fleet)
        changes = fleet.processes[0].server.changes
        changes.clear()
        await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        assert changes[-1] == GROUP, "it is reported"
        for power_cut in (False, True):
            assert traces(fleet) == []
            assert fleet.host(0).find(GROUP) is None
            fleet.processes[0].kill(power_cut=power_cut)
            await fleet.restart(0)

    steps()


def operations(tombstone):
    """Return the number of file operations of a deletion for good."""
    found = []

    @scenario()
    async def steps(fleet):
        await filled(fleet, tombstone=tombstone)
        disk = fleet.processes[0].disk
        before = disk.operations
        await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        found.append(disk.operations - before)

    steps()
    return found[0]


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("tombstone", [False, True])
def test_crash_at_any_file_operation_leaves_replica_tombstone_or_nothing(tombstone, power_cut):
    for step in range(1, operations(tombstone) + 1):
        _dies(step, tombstone=tombstone, power_cut=power_cut)


def _dies(step, *, tombstone, power_cut):
    @scenario()
    async def steps(fleet):
        await filled(fleet, tombstone=tombstone)
        process = fleet.processes[0]
        process.disk.die_after(step)
        done = fleet.spawn(0, fleet.host(0).delete_for_good(GROUP))
        await fleet.until(lambda: done or not process.alive, "end")
        if process.alive:
            process.kill(power_cut=power_cut)
        elif power_cut:
            process.power_cut()
        await fleet.restart(0)
        replica = fleet.host(0).find(GROUP)
        if replica is None:
            assert traces(fleet) == [], f"a crash at operation {step} leaves files"
            return
        states = [State.TOMBSTONED]
        states += [] if tombstone else [State.RUNNING, State.CONFIGURING]
        assert replica.state in states, f"a crash at operation {step}"
        await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        assert (fleet.host(0).find(GROUP), traces(fleet)) == (None, [])

    steps()


@pytest.mark.parametrize("folder", ["cmeta", "superblock"])
def test_file_that_a_crash_left_unfinished_goes_at_the_next_start(folder):
    """One of a replica that is gone before its file is written again would stay for ever."""

    @scenario()
    async def steps(fleet):
        await filled(fleet, tombstone=True)
        files = fleet.processes[0].env.files
        files.write_new(f"/data/{folder}/{GROUP}.tmp", [b"half of a"])
        files.sync_dir(f"/data/{folder}")
        fleet.processes[0].kill(power_cut=False)
        await fleet.restart(0)
        assert fleet.host(0).find(GROUP).state is State.TOMBSTONED
        await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        assert traces(fleet) == []

    steps()


@scenario()
async def test_delayed_creation_is_refused_after_deletion_for_good(fleet):
    await filled(fleet)
    await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
    with pytest.raises(NotFound, match="deleted for good"):
        await fleet.create(0, GROUP)
    assert traces(fleet) == []


@copy_scenario(servers=3)
async def test_delayed_copy_is_refused_after_deletion_for_good(fleet):
    await filled(fleet)
    await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
    with pytest.raises(NyalaError, match="deleted for good"):
        await fleet.order(0, 1)
    assert fleet.stage(0) is not CopyStage.DONE
    assert traces(fleet) == []


def test_memory_of_replicas_deleted_for_good_is_bounded(monkeypatch):
    monkeypatch.setattr(registry, "DELETED_KEPT", 0)

    @scenario()
    async def steps(fleet):
        await filled(fleet)
        await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        await fleet.create(0, GROUP)  # forgotten: the masters delete it again
        assert fleet.host(0).find(GROUP) is not None

    steps()


@scenario()
async def test_vote_in_flight_does_not_bring_tombstone_back(fleet):
    await filled(fleet, tombstone=True)
    term = fleet.replica(0).status().term + 5
    ask = RequestVote(
        sender=uuid_of(1), to=uuid_of(0), term=term, last=fleet.replica(1).status().last
    )
    disk = fleet.processes[0].disk
    asked: list[str] = []

    def asks_at_first_removal(_kind, path):
        if not asked and path.startswith("/data/data"):
            asked.append(path)
            fleet.loop.call_soon(
                fleet.deliver, 0, PeerBatch(uuid_of(1), uuid_of(0), 0, ((GROUP, ask),))
            )
        return False

    disk.die_when = asks_at_first_removal
    await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
    assert asked
    fleet.deliver(0, PeerBatch(uuid_of(1), uuid_of(0), 0, ((GROUP, ask),)))
    await fleet.pass_ms(1000)
    assert traces(fleet) == []


def hold_log(fleet):
    """Let all writes of server 0's log wait; return their gate. Its other files are as fast as ever."""
    tasks, gate = fleet.processes[0].tasks, asyncio.Event()
    in_lane = tasks.run

    async def run_unless_held(lane, work, *args, **more):
        if getattr(work, "__func__", None) is SegmentWriter.write:
            await gate.wait()
        return await in_lane(lane, work, *args, **more)

    tasks.run = run_unless_held
    return gate


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("tombstone", [False, True])
def test_superblock_is_kept_until_slow_log_has_voided_entries(tombstone, power_cut):
    """Entries without a superblock look like those of a lost replica, which nothing deletes."""

    @scenario()
    async def steps(fleet):
        await filled(fleet, tombstone=tombstone)
        gate = hold_log(fleet)
        done = fleet.spawn(0, fleet.host(0).delete_for_good(GROUP))
        await fleet.pass_ms(5000)
        assert not done
        assert "superblock" in traces(fleet)
        assert fleet.host(0).find(GROUP).state is State.TOMBSTONED
        if power_cut:
            fleet.processes[0].kill(power_cut=True)
            await fleet.restart(0)
            assert fleet.host(0).find(GROUP).state is State.TOMBSTONED
            await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        else:
            gate.set()
            await fleet.until(lambda: done, "the deletion ends")
            fleet.processes[0].kill(power_cut=True)
            await fleet.restart(0)
        assert (fleet.host(0).find(GROUP), traces(fleet)) == (None, [])

    steps()


@pytest.mark.parametrize("policy", ["interval", "never"])
def test_deletion_for_good_is_durable_under_every_sync_policy(policy):
    @scenario(options=Options(wal_segment_mb=1, wal_sync=policy, wal_sync_interval_ms=5000))
    async def steps(fleet):
        await filled(fleet)
        await fleet.pass_ms(10_000)
        await fleet.as_(0, fleet.host(0).delete_for_good(GROUP))
        fleet.processes[0].kill(power_cut=True)
        await fleet.restart(0)
        assert (fleet.host(0).find(GROUP), traces(fleet)) == (None, [])

    steps()
