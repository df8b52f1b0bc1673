"""A witness becomes a voter: by a copy's files and its own log, after any interruption."""

from contextlib import suppress

import pytest

from nyala.common.errors import Throttled, Unavailable
from nyala.common.ids import OpId
from nyala.raft.membership import Configuration, Member
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.witness import Witness
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.selected import first
from tests.unit.replica.support.copy_steps import fill, flush
from tests.unit.replica.support.copy_support import LIMITED, scenario
from tests.unit.replica.support.replica_support import GROUP, uuid_of


async def with_witness(fleet):
    """Two voters with data, and server 3 as a witness that is to get it."""
    await fill(fleet)
    leader = await flush(fleet)
    status = fleet.replica(leader).status()
    witness = Member(uuid_of(3), "s3:9", "s3:7", voter=True, promote=True, electable=False)
    start = fleet.replica(leader).machine.flush_point
    change = Change(ChangeKind.ADD, witness)
    await fleet.as_(leader, fleet.replica(leader).change_config([change], None, 10_000))
    config = Configuration((*status.config.members, witness), status.committed_config.id)
    await fleet.as_(3, fleet.host(3).create_witness(GROUP, config, start))
    await fill(fleet, 10)
    await fleet.until(
        lambda: fleet.replica(3).status().last == fleet.replica(leader).status().last,
        "the witness has all entries",
    )
    return leader


def electable(number):
    member = Member(uuid_of(number), f"s{number}:9", f"s{number}:7", voter=True, electable=True)
    return Change(ChangeKind.MODIFY, member)


@pytest.mark.row("S1.51")
@scenario(servers=4, members=2)
async def test_witness_receives_data_replays_its_log_and_may_lead(fleet):
    leader = await with_witness(fleet)
    await fleet.order(3, leader)
    await fleet.until(
        lambda: fleet.stage(3) in (CopyStage.DONE, CopyStage.FAILED), "filled", 60_000
    )
    assert fleet.progress(3).error is None
    assert fleet.progress(3).log_bytes == 0, "no log entries are copied to a witness"
    await fleet.as_(leader, fleet.replica(leader).change_config([electable(3)], None, 10_000))
    await fill(fleet, 5)
    await fleet.until(lambda: fleet.machine(3).sums == {"k": 35}, "the new voter applies entries")
    await fleet.restart_after_power_cut(3)
    await fleet.until(
        lambda: fleet.machine(3).sums == {"k": 35}, "the new voter has all rows after a restart"
    )
    fleet.replica(leader).transfer(uuid_of(3))
    await fleet.until(lambda: fleet.leading() == 3, "the new voter leads")
    await fleet.until(lambda: fleet.sessions() == 0, "no session is left")


@scenario(servers=4, members=2)
async def test_witness_with_lost_tail_keeps_recovery_debt_after_data_copy(fleet):
    """It acknowledged entries of a majority: it votes for no candidate without them, and never campaigns."""
    leader = await with_witness(fleet)
    core = fleet.replica(3).node.core
    core.lost_last = OpId(core.term, core.log.last.index + 1000)
    core.known_commit, core.known_term = core.log.last.index + 500, core.term
    before = core.lost_last, core.known_commit, core.known_term
    assert core.incomplete
    await fleet.order(3, leader)
    await fleet.until(
        lambda: fleet.stage(3) in (CopyStage.DONE, CopyStage.FAILED), "filled", 60_000
    )
    assert not isinstance(fleet.replica(3).machine, Witness)
    core = fleet.replica(3).node.core
    assert (core.lost_last, core.known_commit, core.known_term) == before
    assert core.incomplete


@scenario(servers=4, members=2)
async def test_witness_with_collected_log_gets_newer_checkpoint(fleet):
    leader = await with_witness(fleet)
    flusher, machine = fleet.replica(3).running_member().flusher, fleet.replica(3).machine
    joined = machine.flush_point.op.index
    await fleet.until(
        lambda: fleet.replica(3).status().applied.index > joined,
        "the witness learns the commit index",
    )
    assert not await fleet.as_(3, flusher.flush())
    flusher.release_log()
    assert await fleet.as_(3, flusher.flush())
    assert machine.flush_point.op.index > joined
    await fleet.order(3, leader)
    await fleet.until(
        lambda: fleet.stage(3) in (CopyStage.DONE, CopyStage.FAILED), "filled", 60_000
    )
    assert fleet.progress(3).error is None
    await fill(fleet, 5)
    await fleet.until(lambda: fleet.machine(3).sums == {"k": 35}, "the new voter has all rows")


@pytest.mark.row("S1.50")
@scenario(servers=4, members=2, options=LIMITED)
async def test_witness_continues_as_witness_after_cancelled_copy(fleet):
    leader = await with_witness(fleet)
    await fleet.order(3, leader)
    await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
    request = pb.CancelCopyRequest(destination_uuid=uuid_of(3), cluster_id="one", tablet_id=GROUP)
    await fleet.ask(3, methods.CANCEL_COPY, request)
    assert fleet.stage(3) is CopyStage.CANCELLED
    assert isinstance(fleet.replica(3).machine, Witness)
    assert fleet.processes[3].env.files.list("/data/copy") == []
    other = next(n for n in range(2) if n != leader)
    fleet.processes[other].kill()
    await fleet.write(b"k 1")


@pytest.mark.parametrize("after_stop", [False, True])
def test_copy_to_witness_is_cancelled_while_its_log_is_full(after_stop):
    """Also if the log is full only once the witness has stopped: then the next start decides."""

    @scenario(servers=4, members=2)
    async def steps(fleet):
        leader = await with_witness(fleet)
        wal, refused = fleet.host(3).wal, []
        whole = wal.reserve

        def reserve(group, entries, hard_state):
            if fleet.stage(3) is CopyStage.INSTALLING and (hard_state is not None) == after_stop:
                refused.append(1)
                raise Throttled("the log cannot grow")
            return whole(group, entries, hard_state)

        wal.reserve = reserve
        await fleet.order(3, leader)
        await fleet.until(lambda: refused, "the copy waits for space in the log")
        request = pb.CancelCopyRequest(
            destination_uuid=uuid_of(3), cluster_id="one", tablet_id=GROUP
        )
        await fleet.ask(3, methods.CANCEL_COPY, request)
        assert (fleet.replica(3).error is not None) == after_stop
        await fleet.restart_after_power_cut(3)
        assert isinstance(fleet.replica(3).machine, Witness)
        await fleet.write(b"k 1")

    steps()


@pytest.mark.parametrize("part", first(range(3)))
def test_witness_crash_at_any_file_operation_of_copy(part):
    for step in range(part + 1, 40, 3):
        _witness_dies(step)


def _witness_dies(step):
    @scenario(servers=4, members=2)
    async def steps(fleet):
        leader = await with_witness(fleet)
        target = fleet.processes[3]
        target.disk.die_after(step)
        with suppress(Unavailable):  # it crashed before it answered
            await fleet.order(3, leader)
        await fleet.until(
            lambda: not target.alive or fleet.stage(3) in (CopyStage.DONE, CopyStage.FAILED), "end"
        )
        if target.alive:
            target.kill(power_cut=step % 2 == 0)
        elif step % 2 == 0:
            target.power_cut()
        await fleet.write(b"k 1")
        await fleet.restart(3)
        assert fleet.replica(3).error is None
        if isinstance(fleet.replica(3).machine, Witness):
            await fleet.order(3, leader)
            await fleet.until(
                lambda: fleet.stage(3) in (CopyStage.DONE, CopyStage.FAILED), "filled", 60_000
            )
            assert fleet.progress(3).error is None
        await fleet.until(lambda: fleet.machine(3).sums == {"k": 31}, "the new voter has all rows")

    steps()
