"""A copied replica is complete: its files, its log, its membership; and refusals."""

import asyncio
from unittest import mock

import pytest

from nyala.common.errors import AlreadyPresent, InvalidArgument, Unavailable
from nyala.common.options import Options
from nyala.raft.status import Role
from nyala.replica.copy.protocol import CopyStage
from nyala.replica.copy.source_holds import SourceHolds
from nyala.replica.status import State
from nyala.replica.superblock import Superblocks
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.replica.support.copy_steps import add, fill, flush
from tests.unit.replica.support.copy_support import LIMITED, scenario
from tests.unit.replica.support.replica_support import GROUP, uuid_of

GENTLE = Options(wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=700, copy_busy_rate_bytes=5000)


@pytest.mark.row("S1.7", "S1.37")
@scenario()
async def test_copied_replica_has_files_and_log_and_becomes_member(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    assert (await fleet.order(3, leader)).stage in ("STARTING", "FILES")
    progress = await fleet.copied(3)
    assert progress.stage is CopyStage.WAITING
    assert progress.bytes_done == progress.bytes_total > 3000
    assert progress.last == fleet.replica(leader).status().last
    assert fleet.replica(3).role is Role.NON_PARTICIPANT
    assert fleet.sessions() == 1, "the source keeps its log"
    await add(fleet, 3)
    await fleet.until(
        lambda: fleet.stage(3) is CopyStage.DONE, "the source knows that the copy is done"
    )
    await fleet.until(lambda: fleet.replica(3).role is Role.FOLLOWER, "promoted")
    await fill(fleet, 5)
    await fleet.settled()
    assert fleet.machine(3).sums == {"k": 45}
    assert fleet.machine(3).runs <= 25, "the files were copied, and only later entries applied"
    await fleet.until(lambda: fleet.sessions() == 0, "the session is over")
    await fleet.until(lambda: not fleet.machine(leader).held, "nothing is held")
    await fleet.restart_after_power_cut(3)
    await fleet.settled()
    assert fleet.machine(3).sums == {"k": 45}


@pytest.mark.row("S1.37")
@scenario()
async def test_copy_resumes_at_last_durable_byte(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    asked = []
    sessions = fleet.host(leader).copies.sessions
    read = sessions.read

    async def cut_off(session, name, offset):
        asked.append((name, offset))
        if len(asked) in (3, 6):
            raise Unavailable("the connection is cut")
        return await read(session, name, offset)

    sessions.read = cut_off
    await fleet.order(3, leader)
    progress = await fleet.copied(3)
    assert progress.retries == 2
    served = [a for n, a in enumerate(asked, 1) if n not in (3, 6)]
    assert len(set(served)) == len(served), "no byte was transferred twice"
    assert asked[2] == asked[3]
    assert asked[2][1] > 0


@scenario()
async def test_target_opens_new_session_when_source_forgot_it(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    sessions = fleet.host(leader).copies.sessions
    entries, calls = sessions.entries, []

    async def forgetful(session, after):
        calls.append(after)
        if len(calls) == 2:
            await sessions.hold(session, end=True)
        return await entries(session, after)

    sessions.entries = forgetful
    await fleet.order(3, leader)
    progress = await fleet.copied(3)
    assert progress.retries == 1
    assert progress.bytes_done == progress.bytes_total
    assert fleet.replica(3).status().last == fleet.replica(leader).status().last


@scenario(options=Options(wal_segment_mb=1, wal_retain_mb=0, copy_session_ttl_ms=4000))
async def test_source_session_expires_when_target_is_gone(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fleet.order(3, leader)
    await fleet.copied(3)
    assert fleet.sessions() == 1
    await fleet.pass_ms(20_000)
    assert fleet.sessions() == 1, "a live target keeps its session"
    fleet.processes[3].kill()
    await fleet.until(lambda: fleet.sessions() == 0, "expired")
    await fleet.until(lambda: not fleet.machine(leader).held, "nothing is held")
    assert fleet.replica(leader).node.core.copy_retain_index == 0


@scenario(options=Options(wal_segment_mb=1, wal_retain_mb=0, copy_session_ttl_ms=4000))
async def test_source_session_ends_although_an_attempt_to_end_it_failed(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fleet.order(3, leader)
    await fleet.copied(3)
    failures: list[str] = []
    end = SourceHolds.end

    async def fail_once(holds, session):
        if not failures:
            failures.append(session.id)
            raise KeyError(session.id)
        await end(holds, session)

    with mock.patch.object(SourceHolds, "end", fail_once):
        fleet.processes[3].kill()
        await fleet.until(lambda: fleet.sessions() == 0, "expired")
    fleet.forgive(KeyError)


@scenario(options=Options(wal_segment_mb=1, wal_retain_mb=0, copy_wait_ms=5000))
async def test_copy_never_made_member_anchors_log_for_limited_time(fleet):
    leader = await flush(fleet)
    await fleet.order(3, leader)
    await fleet.copied(3)
    await fleet.until(lambda: fleet.stage(3) is CopyStage.DONE and not fleet.sessions(), "let go")
    assert fleet.replica(3).role is Role.NON_PARTICIPANT


@scenario()
async def test_repeated_copy_order_returns_progress(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    first = await fleet.order(3, leader)
    again = await fleet.order(3, leader)
    assert again.elapsed_ms >= first.elapsed_ms
    with pytest.raises(AlreadyPresent, match="being copied"):
        await fleet.order(3, (leader + 1) % 3)
    await add(fleet, 3)
    await fleet.until(lambda: fleet.stage(3) is CopyStage.DONE, "done")
    assert (await fleet.order(3, leader)).stage == "DONE"
    assert fleet.host(leader).copies.progress() == []


@pytest.mark.row("S1.50")
@scenario(options=LIMITED)
async def test_cancelled_copy_leaves_no_files(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fleet.order(3, leader)
    await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
    request = pb.CancelCopyRequest(destination_uuid=uuid_of(3), cluster_id="one", tablet_id=GROUP)
    await fleet.ask(3, methods.CANCEL_COPY, request)
    assert fleet.stage(3) is CopyStage.CANCELLED
    assert fleet.leftovers(3) == []
    await fleet.until(lambda: fleet.sessions() == 0, "the source was notified of the end")
    await fleet.ask(3, methods.CANCEL_COPY, request)
    await fleet.order(3, leader)
    await fleet.copied(3)


@scenario(servers=4, options=LIMITED)
async def test_copy_rate_is_within_limit(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    began = fleet.loop.now_us()
    await fleet.order(3, leader)
    progress = await fleet.copied(3)
    seconds = (fleet.loop.now_us() - began) / 1e6
    assert seconds >= (progress.bytes_total - 700) / 1000


async def a_piece(fleet, source):
    """Read a piece of a file for another server, and end its session."""
    sessions = fleet.host(source).copies.sessions
    offer = await fleet.as_(source, sessions.begin(GROUP, uuid_of(9)))
    await fleet.as_(source, sessions.read(offer.session, offer.files[0].name, 0))
    await fleet.as_(source, sessions.hold(offer.session, end=True))


@pytest.mark.parametrize("writing", [True, False])
def test_copy_yields_bandwidth_to_writers_only(writing):
    """Writers at the source or at the target are detected by the server's own log."""

    @scenario(options=GENTLE)
    async def steps(fleet):
        await fill(fleet)
        leader = await flush(fleet)
        await fleet.pass_ms(3000)
        await a_piece(fleet, leader)  # from now on the source detects new writes
        until = [writing]

        async def write():
            while until[0]:
                await fleet.write(b"k 1")
                await fleet.pass_ms(20)

        at_work = asyncio.ensure_future(write())
        await fleet.pass_ms(200)
        began = fleet.loop.now_us()
        await fleet.order(3, leader)
        progress = await fleet.copied(3)
        until[0] = False
        await at_work
        seconds = (fleet.loop.now_us() - began) / 1e6
        least = (progress.bytes_total - 2 * 700) / 5000
        assert (seconds >= least) is writing, (seconds, least)

    steps()


@scenario(servers=3, members=3)
async def test_copy_replaces_tombstone_and_keeps_its_vote_and_op_id(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    deleted = (leader + 1) % 3
    await fleet.as_(deleted, fleet.host(deleted).delete_replica(GROUP))
    tombstone = fleet.replica(deleted).tombstone.superblock
    assert tombstone.votes
    await fill(fleet)
    await fleet.order(deleted, leader)
    progress = await fleet.copied(deleted)
    assert progress.last > tombstone.last
    assert fleet.replica(deleted).node.core.hard.term >= tombstone.hard_state.term
    if (
        tombstone.hard_state.term == fleet.replica(deleted).node.core.hard.term
        and tombstone.hard_state.vote
    ):
        assert fleet.replica(deleted).node.core.hard.vote == tombstone.hard_state.vote
    await fleet.settled()
    assert fleet.machine(deleted).sums == {"k": 40}


@scenario(servers=3, members=3)
async def test_copy_without_entries_acknowledged_by_tombstone_is_refused(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    deleted, behind = [n for n in range(3) if n != leader]
    await fleet.settled()
    fleet.network.partition([f"s{behind}"], [f"s{n}" for n in range(3) if n != behind])
    await fill(fleet, 5)
    await fleet.until(
        lambda: fleet.replica(deleted).status().last == fleet.replica(leader).status().last, "acked"
    )
    await fleet.as_(deleted, fleet.host(deleted).delete_replica(GROUP))
    tombstone = fleet.replica(deleted).tombstone.superblock
    fleet.processes[leader].kill()
    fleet.network.heal()
    await fleet.order(deleted, behind, force=True)
    err = await fleet.refused(deleted)
    assert isinstance(err, InvalidArgument)
    assert str(tombstone.last) in str(err)
    assert fleet.replica(deleted).state is State.TOMBSTONED
    assert fleet.leftovers(deleted) == [f"superblock/{GROUP}"]
    saved = Superblocks(fleet.processes[deleted].env.files, "/data").load(GROUP)
    assert saved is not None
    assert saved.last == tombstone.last
    await fleet.pass_ms(5000)
    assert fleet.leading() is None, "a candidate without the acknowledged entries gets no vote"
    await fleet.restart(leader)
    await fleet.leader()
    await fleet.order(deleted, await fleet.leader())
    await fleet.copied(deleted)


@pytest.mark.row("S1.17", "S1.7")
@pytest.mark.parametrize("lead_on", [True, False])
def test_log_between_copy_and_membership_is_not_collected(lead_on):
    @scenario()
    async def steps(fleet):
        big = b"k 1" + b" " * 30_000

        async def collect():
            for number in fleet.alive():
                host = fleet.host(number)
                replica = host.find(GROUP)
                if replica is not None and replica.member is not None:
                    await fleet.as_(number, replica.flush())
            await fleet.pass_ms(500)
            for number in fleet.alive():
                for replica in fleet.host(number).all():
                    if replica.member is not None:
                        replica.member.anchor()
                await fleet.as_(number, _awaited(fleet.host(number).wal.collect()))

        async def push(count=60):
            for _ in range(count):
                await fleet.write(big)
            await collect()

        await push()
        leader = await flush(fleet)
        sessions = fleet.host(leader).copies.sessions
        entries = sessions.entries

        async def between(session, after):
            await push()  # files are copied, the log is not
            return await entries(session, after)

        sessions.entries = between
        fleet.spawn(3, _nothing())
        await fleet.order(3, leader)
        await fleet.until(lambda: fleet.stage(3) is CopyStage.LOG, "files", 60_000)
        sessions.entries = entries
        await fleet.copied(3)
        await push()  # copied, and no member
        reached = fleet.replica(3).status().last
        first = fleet.host(leader).wal.logged(GROUP).first
        assert first <= reached.index + 1, "the log has the entries that the copy lacks"
        if not lead_on:
            fleet.replica(leader).transfer(uuid_of((leader + 1) % 3))
            await fleet.until(lambda: fleet.leading() not in (None, leader), "another leads")
        await add(fleet, 3)
        await push()
        await fleet.until(lambda: fleet.replica(3).role is Role.FOLLOWER, "promoted")
        await fleet.settled()
        assert fleet.machine(3).sums == fleet.machine(leader).sums
        peers = fleet.replica(await fleet.leader()).status().peers
        assert not any(p.needs_copy for p in peers)

    steps()


async def _awaited(task):
    return await task


async def _nothing():
    return None
