"""Crashes of source and target in any file operation of a copy: no partial replica; a repetition succeeds."""

from contextlib import suppress

import msgspec
import pytest

from nyala.common.errors import NyalaError, Unavailable
from nyala.common.options import Options
from nyala.replica.copy.protocol import ENDED, CopyStage
from nyala.replica.status import State
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.selected import first
from tests.unit.replica.support.copy_steps import add, fill, flush
from tests.unit.replica.support.copy_support import scenario
from tests.unit.replica.support.replica_support import GROUP, uuid_of

QUICK = Options(
    wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=1200, copy_retry_ms=3000,
    copy_session_ttl_ms=4000,
)  # fmt: skip
LIMITED = msgspec.structs.replace(QUICK, copy_rate_bytes=1000)
EVERYTHING = {"k": 30}


async def prepared(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet, 10)
    return leader


def operations(target_dies):
    """Count the file operations that the target (or the source) makes in a copy."""
    found = []

    @scenario(options=QUICK)
    async def steps(fleet):
        leader = await prepared(fleet)
        disk = fleet.processes[3 if target_dies else leader].disk
        before = disk.operations
        await fleet.order(3, leader)
        await fleet.copied(3)
        found.append(disk.operations - before)

    steps()
    return found[0]


@pytest.mark.row("S2.8")
@pytest.mark.parametrize("part", first(range(4)))
def test_target_crash_at_any_file_operation_of_copy(part):
    for step in range(part + 1, operations(True) + 1, 4):
        _target_dies(step, power_cut=step % 2 == 0)


def _target_dies(step, power_cut):
    @scenario(options=QUICK)
    async def steps(fleet):
        leader = await prepared(fleet)
        target = fleet.processes[3]
        target.disk.die_after(step)
        with suppress(Unavailable):  # it crashed before it answered
            await fleet.order(3, leader)
        await fleet.until(
            lambda: not target.alive or fleet.stage(3) in (CopyStage.WAITING, *ENDED), "end"
        )
        if target.alive:
            target.kill(power_cut=power_cut)
        elif power_cut:
            target.power_cut()
        await fleet.restart(3)
        replica = fleet.host(3).find(GROUP)
        if replica is not None and replica.state is not State.FAILED:
            assert replica.status().last == fleet.replica(leader).status().last, (
                "a replica is complete or does not exist"
            )
        elif replica is not None:
            assert "copy it again" in str(replica.error)
            assert fleet.leftovers(3) == [f"superblock/{GROUP}"]
            with pytest.raises(Unavailable):
                replica.running_member()
            await fleet.order(3, leader)
        else:
            await fleet.order(3, leader)
        if replica is not None and replica.member is not None:
            await add(fleet, 3)
            await fleet.until(
                lambda: fleet.machine(3).sums == EVERYTHING, "the target has all rows"
            )
            return
        await fleet.copied(3)
        await add(fleet, 3)
        await fleet.until(lambda: fleet.machine(3).sums == EVERYTHING, "the target has all rows")
        await fleet.until(lambda: fleet.sessions() == 0, "no session is left", 60_000)
        await fleet.until(lambda: not fleet.machine(leader).held, "nothing is held")

    steps()


@pytest.mark.parametrize("part", first(range(2)))
def test_crash_during_copy_over_tombstone_leaves_tombstone_or_replica(part):
    for step in range(part + 1, operations(True) + 3, 6):
        _tombstone_dies(step, power_cut=step % 2 == 0)


def _tombstone_dies(step, power_cut):
    @scenario(servers=3, options=QUICK)
    async def steps(fleet):
        leader = await prepared(fleet)
        deleted = (leader + 1) % 3
        await fleet.settled()
        await fleet.as_(deleted, fleet.host(deleted).delete_replica(GROUP))
        tombstone = fleet.replica(deleted).tombstone.superblock
        target = fleet.processes[deleted]
        target.disk.die_after(step)
        with suppress(Unavailable):  # it crashed before it answered
            await fleet.order(deleted, leader)
        await fleet.until(
            lambda: not target.alive or fleet.stage(deleted) in (CopyStage.WAITING, *ENDED), "end"
        )
        if target.alive:
            target.kill(power_cut=power_cut)
        elif power_cut:
            target.power_cut()
        await fleet.restart(deleted)
        replica = fleet.replica(deleted)
        if replica.state is State.TOMBSTONED:
            kept = replica.tombstone.superblock
            assert (kept.last, kept.votes) == (tombstone.last, True)
            assert kept.hard_state.term >= tombstone.hard_state.term
            assert fleet.leftovers(deleted) == [f"superblock/{GROUP}"]
            await fleet.order(deleted, leader)
            await fleet.copied(deleted)
        else:
            assert replica.node.core.hard.term >= tombstone.hard_state.term
            assert replica.status().last >= tombstone.last
        await fleet.settled()
        assert fleet.machine(deleted).sums == EVERYTHING

    steps()


@pytest.mark.parametrize("kill_at", range(1, 14))
def test_source_crash_at_any_call_of_copy(kill_at):
    @scenario(options=QUICK)
    async def steps(fleet):
        leader = await prepared(fleet)
        sessions = fleet.host(leader).copies.sessions
        source, calls = fleet.processes[leader], []

        def dying(call):
            async def called(*args, **more):
                calls.append(call.__name__)
                if len(calls) == kill_at:
                    fleet.network.after(0, lambda: source.kill(power_cut=kill_at % 2 == 0))
                return await call(*args, **more)

            return called

        for name in ("begin", "read", "entries", "hold"):
            setattr(sessions, name, dying(getattr(sessions, name)))
        await fleet.order(3, leader)
        await fleet.until(
            lambda: not source.alive or fleet.stage(3) in (CopyStage.WAITING, *ENDED),
            "died, or done",
        )
        if kill_at % 3 == 0:  # it returns while the target waits: the copy begins again
            if not source.alive:
                await fleet.restart(leader)
            await fleet.until(
                lambda: fleet.stage(3) in (CopyStage.WAITING, *ENDED), "ended", 60_000
            )
        else:
            await fleet.until(
                lambda: fleet.stage(3) in (CopyStage.WAITING, *ENDED), "ended", 60_000
            )
            if not source.alive:
                await fleet.restart(leader)
        if fleet.stage(3) is CopyStage.FAILED:
            assert isinstance(fleet.progress(3).error, NyalaError)
            assert fleet.leftovers(3) == []
            leader = await fleet.leader()
            await fleet.order(3, leader)
            await fleet.copied(3)
        await add(fleet, 3)
        await fleet.until(lambda: fleet.machine(3).sums == EVERYTHING, "the target has all rows")
        await fleet.until(lambda: fleet.sessions() == 0, "no session is left", 60_000)

    steps()


@scenario(options=LIMITED)
async def test_partial_copy_after_crash_is_restored_when_next_copy_aborts(fleet):
    leader = await prepared(fleet)
    for _ in range(2):
        await fleet.order(3, leader)
        await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
        await fleet.restart_after_power_cut(3)
        await fleet.order(3, leader)
        await fleet.until(
            lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun again"
        )
        request = pb.CancelCopyRequest(
            destination_uuid=uuid_of(3), cluster_id="one", tablet_id=GROUP
        )
        await fleet.ask(3, methods.CANCEL_COPY, request)
        assert fleet.host(3).find(GROUP).state is State.FAILED
        assert fleet.leftovers(3) == [f"superblock/{GROUP}"]
    await fleet.order(3, leader)
    await fleet.copied(3)


@pytest.mark.row("S2.24")
@scenario(servers=5, options=QUICK)
async def test_concurrent_copies_from_one_source_and_to_stopped_server(fleet):
    leader = await prepared(fleet)
    for target in (3, 4):
        await fleet.order(target, leader)
    for target in (3, 4):
        await fleet.copied(target)
    assert fleet.sessions() == 2
    for target in (3, 4):
        await add(fleet, target)
    await fleet.until(lambda: fleet.sessions() == 0, "both are members")
    await fleet.settled()
    assert fleet.machine(3).sums == fleet.machine(4).sums == EVERYTHING


@scenario(options=LIMITED)
async def test_stopped_server_leaves_no_partial_copy(fleet):
    leader = await prepared(fleet)
    await fleet.order(3, leader)
    await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
    files, host = fleet.processes[3].env.files, fleet.host(3)
    await fleet.as_(3, host.close())
    assert files.list("/data/copy") == []
    assert not files.exists(f"/data/superblock/{GROUP}")
    await fleet.restart_after_power_cut(3)
    assert fleet.host(3).find(GROUP) is None


@scenario(options=LIMITED)
async def test_partial_copy_after_crash_can_be_deleted(fleet):
    leader = await prepared(fleet)
    await fleet.order(3, leader)
    await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
    with pytest.raises(Unavailable, match="being created, copied or deleted"):
        await fleet.as_(3, fleet.create(3, GROUP, fleet.configuration(range(4))))
    await fleet.restart_after_power_cut(3)
    assert fleet.replica(3).state is State.FAILED
    await fleet.as_(3, fleet.host(3).delete_replica(GROUP))
    assert fleet.replica(3).state is State.TOMBSTONED
    status = await fleet.ask(3, methods.COPY_STATUS, pb.CopyStatusRequest(tablet_ids=[GROUP]))
    assert not status.copies
    await fleet.order(3, leader)
    await fleet.copied(3)
