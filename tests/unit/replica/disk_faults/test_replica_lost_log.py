"""The log is lost, or its first or last segments: replicas whose votes it may have had are inactive."""

from contextlib import suppress

import pytest

from nyala.common.ids import TabletId
from nyala.common.options import Options
from nyala.replica.status import State
from nyala.replica.superblock import ReplicaStage, Superblocks
from tests.sim.world.process import ProcessDiedInStart
from tests.unit.replica.support.replica_support import GROUP, Fleet, scenario

OTHER, THIRD = TabletId("b" * 32), TabletId("c" * 32)


def lose_log(fleet: Fleet, number: int, *, keep_last: int = 0) -> None:
    files = fleet.processes[number].disk.mount()
    names = files.list("/data/wal")
    for name in names[: len(names) - keep_last]:
        files.remove(f"/data/wal/{name}")
    files.sync_dir("/data/wal")


@scenario()
async def test_replica_with_lost_log_neither_votes_nor_campaigns(fleet):
    """Only leader and follower have acknowledged writes; the follower loses its log, the leader is down."""
    for _ in range(5):
        await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    follower, third = [n for n in range(3) if n != leader]
    fleet.processes[third].kill()
    for _ in range(5):
        await fleet.write(b"k 1")
    fleet.processes[follower].kill()
    fleet.processes[leader].kill()
    lose_log(fleet, follower)
    await fleet.boot(follower)
    status = fleet.replica(follower).status()
    assert status.state is State.FAILED
    assert "segments 1 to 1 of the log must exist; found: none" in str(status.error)
    await fleet.boot(third)
    await fleet.pass_ms(10_000)
    assert fleet.leading() is None
    await fleet.boot(leader)
    await fleet.until(lambda: fleet.machine(third).sums == {"k": 10}, "nothing is lost")


@pytest.mark.parametrize("keep_last", [0, 1])
def test_lost_log_state_survives_restarts_and_other_replicas_are_created(keep_last):
    @scenario(options=Options(wal_segment_mb=1, raft_quiesce_ms=0))
    async def go(fleet):
        for _ in range(5):
            await fleet.write(b"k %d" % 1)
        for _ in range(3):  # segments of their own
            fleet.processes[0].kill()
            await fleet.boot(0)
            await fleet.write(b"k 1")
        await fleet.settled()
        fleet.processes[0].kill()
        lose_log(fleet, 0, keep_last=keep_last)
        for _ in range(3):
            await fleet.boot(0)
            assert fleet.replica(0).state is State.FAILED
            fleet.processes[0].kill()
        await fleet.boot(0)
        for number in range(3):
            await fleet.create(number, OTHER)
        await fleet.write(b"k 1", group=OTHER)
        await fleet.settled(OTHER)
        fleet.processes[0].kill()
        await fleet.boot(0)
        assert fleet.replica(0).state is State.FAILED
        await fleet.until(lambda: fleet.replica(0, OTHER).state is State.RUNNING, "another runs")
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
        assert fleet.replica(0).state is State.TOMBSTONED
        fleet.processes[0].kill()
        await fleet.boot(0)
        assert fleet.replica(0).state is State.TOMBSTONED

    go()


@pytest.mark.parametrize("keep_last", [0, 1])
def test_lost_log_is_recorded_for_every_replica_with_or_without_records(keep_last):
    groups = (GROUP, OTHER, THIRD)

    @scenario(options=Options(wal_segment_mb=1, raft_quiesce_ms=0), groups=groups)
    async def go(fleet):
        for group in groups:
            await fleet.write(b"k 1", group=group)
            await fleet.settled(group)
        for _ in range(3):  # segments of their own; only one group has later entries in them
            fleet.processes[0].kill()
            await fleet.boot(0)
            await fleet.write(b"k 1", group=OTHER)
        await fleet.settled(OTHER)
        fleet.processes[0].kill()
        lose_log(fleet, 0, keep_last=keep_last)
        for _ in range(3):
            await fleet.boot(0)
            states = [fleet.replica(0, group).state for group in groups]
            assert states == [State.FAILED] * 3, "each start reports the lost log"
            superblocks = Superblocks(fleet.processes[0].disk.mount(), "/data")
            for group in groups:
                superblock = superblocks.load(group)
                assert superblock is not None
                assert superblock.stage is ReplicaStage.LOST
            fleet.processes[0].kill()

    go()


@scenario()
async def test_crash_before_all_replicas_are_marked_finds_same_loss_again(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    process = fleet.processes[0]
    process.kill()
    lose_log(fleet, 0)
    process.disk.die_when = lambda call, path: "superblock" in path
    with pytest.raises(ProcessDiedInStart):
        await process.start()
    await fleet.boot(0)
    assert fleet.replica(0).state is State.FAILED


@pytest.mark.full
@pytest.mark.parametrize("keep_last", [0, 1])
def test_crash_during_loss_detection_leaves_no_replica_running(keep_last):
    def dies_after(step):
        @scenario(options=Options(wal_segment_mb=1, raft_quiesce_ms=0), groups=(GROUP, OTHER))
        async def go(fleet):
            for group in (GROUP, OTHER):
                await fleet.write(b"k 1", group=group)
                await fleet.settled(group)
            # the remaining log continues its files, so that only its vote is lost
            await fleet.as_(0, fleet.replica(0, OTHER).running_member().flusher.flush())
            fleet.processes[0].kill()
            await fleet.boot(0)
            await fleet.write(b"k 1", group=OTHER)
            await fleet.settled(OTHER)
            process = fleet.processes[0]
            process.kill()
            lose_log(fleet, 0, keep_last=keep_last)
            process.disk.die_after(step)
            with suppress(ProcessDiedInStart):
                await process.start()
            died.append(process.disk.die_at is None)
            process.kill()
            await fleet.boot(0)
            states = [fleet.replica(0, group).state for group in (GROUP, OTHER)]
            assert states == [State.FAILED] * 2, f"after a crash at operation {step}"

        go()

    died: list[bool] = []
    for step in range(1, 60):
        dies_after(step)
        if not died[-1]:
            break
    assert 5 < len(died) < 59


@scenario()
async def test_server_without_written_log_starts(fleet):
    """Its replicas were made, and no vote was given: nothing is missing."""
    fleet.processes[0].kill()
    await fleet.boot(0)
    await fleet.write(b"k 1")
    await fleet.settled()
    assert fleet.replica(0).state is State.RUNNING


@scenario(options=Options(wal_segment_mb=1, raft_quiesce_ms=0))
async def test_tombstone_keeps_vote_when_log_loses_its_end(fleet):
    """Its term and vote are in its superblock: damage of the log does not affect them."""
    await fleet.write(b"k 1")
    await fleet.settled()
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    vote = fleet.replica(0).status().term
    for _ in range(2):  # segments of their own
        fleet.processes[0].kill()
        await fleet.boot(0)
    await fleet.create(0, OTHER)
    await fleet.pass_ms(100)
    fleet.processes[0].kill()
    files = fleet.processes[0].disk.mount()
    files.remove(f"/data/wal/{files.list('/data/wal')[-1]}")
    files.sync_dir("/data/wal")
    for _ in range(2):
        await fleet.boot(0)
        status = fleet.replica(0).status()
        assert (status.state, status.term) == (State.TOMBSTONED, vote)
        fleet.processes[0].kill()
