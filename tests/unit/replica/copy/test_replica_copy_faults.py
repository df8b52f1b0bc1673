"""Faults during a copy: concurrent orders, repeated requests, continuous writers, disks."""

import asyncio
import errno
from dataclasses import replace

import pytest

from nyala.common.errors import InvalidArgument, SessionExpired, Unavailable
from nyala.common.ids import OpId
from nyala.common.options import Options
from nyala.copying.remote import RemoteSource
from nyala.raft.messages import PeerBatch, RequestVote, VoteReply
from nyala.raft.reconfiguration.changes import Change, ChangeKind
from nyala.replica import lifecycle
from nyala.replica.copy import shielded_steps
from nyala.replica.copy import staging as copy_files
from nyala.replica.copy.protocol import CopyOffer, CopyStage
from nyala.replica.state_machine import AnyCheckpoint
from nyala.replica.status import State
from tests.unit.replica.support.copy_steps import add, fill, flush
from tests.unit.replica.support.copy_support import LIMITED, Checkpoint, PartsMachine, scenario
from tests.unit.replica.support.replica_copy_refusals import OTHER, nothing_changed
from tests.unit.replica.support.replica_support import GROUP, record_batches, uuid_of

SLOW = Options(
    wal_segment_mb=1, wal_retain_mb=0, copy_chunk_bytes=1200, copy_session_ttl_ms=4000,
    copy_rate_bytes=100,
)  # fmt: skip


def source_of(fleet, target, source):
    env = fleet.processes[target].env
    return RemoteSource(env.rpc, uuid_of(target), "one", uuid_of(source), f"s{source}:7")


@scenario()
async def test_copy_cancelled_before_first_step_can_be_ordered_again(fleet):
    leader = await flush(fleet)
    copies, source = fleet.host(3).copies, source_of(fleet, 3, leader)

    async def both():
        await copies.start(GROUP, source)
        await copies.cancel(GROUP)

    await fleet.as_(3, both())
    assert fleet.stage(3) is CopyStage.CANCELLED
    await nothing_changed(fleet)
    await fleet.order(3, leader)
    await fleet.copied(3)


@pytest.mark.row("S1.50")
@pytest.mark.parametrize("first", ["cancelled", "failed"])
def test_copy_cancelled_twice_restores_the_tombstone(first):
    @scenario(servers=3, members=3)
    async def steps(fleet):
        await fill(fleet)
        leader = await flush(fleet)
        deleted = (leader + 1) % 3
        await fleet.as_(deleted, fleet.host(deleted).delete_replica(GROUP))
        copies = fleet.host(deleted).copies
        install, forget = copy_files.install, lifecycle.forget
        asked = []

        def end(*args):
            if first == "failed":
                raise OSError(errno.EIO, "the disk")
            asked.append(fleet.spawn(deleted, copies.cancel(GROUP)))
            install(*args)

        async def asked_again(*args):
            asked.append(fleet.spawn(deleted, copies.cancel(GROUP)))
            await fleet.pass_ms(1)
            await forget(*args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shielded_steps, "forget", asked_again)
            patch.setattr(copy_files, "install", end)
            await fleet.order(deleted, leader)
            await fleet.until(lambda: fleet.stage(deleted) is CopyStage.CANCELLED, "cancelled")
        assert len(asked) == 1 + (first == "cancelled")
        assert fleet.replica(deleted).state is State.TOMBSTONED
        assert fleet.leftovers(deleted) == [f"superblock/{GROUP}"]
        await fleet.pass_ms(
            400
        )  # longer than the deleted replica may have committed itself to vote for nobody
        refused = fleet.refusals(deleted, "group")
        ask = RequestVote(
            sender=uuid_of(leader), to=uuid_of(deleted), term=99, hlc=1, last=OpId(99, 99), pre=True
        )
        fleet.deliver(deleted, PeerBatch(ask.sender, ask.to, 1, ((GROUP, ask),)))
        assert fleet.refusals(deleted, "group") == refused, "the tombstone votes again"
        await fleet.order(deleted, leader)
        await fleet.copied(deleted)

    steps()


@pytest.mark.row("A10")
@scenario(servers=3, members=3)
async def test_tombstone_casts_no_vote_that_the_copy_over_it_would_forget(fleet):
    """The copy's term and vote are decided already; another vote in that term could follow."""
    await fill(fleet)
    leader = await flush(fleet)
    deleted = (leader + 1) % 3
    await fleet.as_(deleted, fleet.host(deleted).delete_replica(GROUP))
    sent, asked = list[PeerBatch](), list[int]()
    record_batches(fleet.processes[deleted], sent)
    install = copy_files.install

    def ask_for_a_vote(*args):
        ask = RequestVote(
            sender=uuid_of(leader), to=uuid_of(deleted), term=99, hlc=1, last=OpId(99, 99)
        )
        asked.append(1)
        fleet.deliver(deleted, PeerBatch(ask.sender, ask.to, 1, ((GROUP, ask),)))
        install(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_files, "install", ask_for_a_vote)
        await fleet.order(deleted, leader)
        await fleet.copied(deleted)
    assert asked
    voted = [m for b in sent for _, m in b.messages if isinstance(m, VoteReply) and m.term == 99]
    assert not voted, "a vote request is lost during the copy"
    await fleet.settled()


@scenario()
async def test_copy_that_begins_again_knows_each_configuration_once(fleet):
    """The source of the second session does not know yet that a configuration in its log is committed."""
    await fill(fleet)
    leader = await flush(fleet)
    sessions = fleet.host(leader).copies.sessions
    begin, entries = sessions.begin, sessions.entries
    offered, requests = list[CopyOffer](), list[OpId]()

    async def old_configuration(*args, **more):
        offered.append(await begin(*args, **more))
        return replace(offered[-1], config=offered[0].config)

    async def forgetful(session, after):
        requests.append(after)
        if len(requests) == 1:
            member = fleet.replica(leader).status().config.get(uuid_of((leader + 1) % 3))
            change = Change(ChangeKind.MODIFY, replace(member, address="elsewhere:7"))
            await fleet.replica(leader).change_config([change], None, 10_000)
        if len(requests) == 2:
            await sessions.hold(session, end=True)
        return await entries(session, after)

    sessions.begin, sessions.entries = old_configuration, forgetful
    await fleet.order(3, leader)
    assert (await fleet.copied(3)).retries == 1
    config = fleet.replica(leader).status().committed_config
    assert config.id.index > offered[0].config.id.index
    assert fleet.replica(3).status().config == config


@pytest.mark.row("S1.7")
@scenario()
async def test_copy_has_no_entry_that_was_not_committed(fleet):
    """The target counts what it gets as committed; its group may replace such an entry by another one."""
    await fill(fleet)
    leader = await flush(fleet)
    await fill(fleet)
    others = [f"s{n}" for n in range(3) if n != leader]
    sessions, replica = fleet.host(leader).copies.sessions, fleet.replica(leader)
    entries, requests = sessions.entries, list[OpId]()

    async def after_an_uncommitted_one(session, after):
        requests.append(after)
        if len(requests) == 1:
            fleet.network.partition([f"s{leader}"], others)
            fleet.spawn(leader, fleet.call(leader, b"k 1000", timeout_ms=1000))
            written = replica.node.last.index + 1
            await fleet.until(lambda: replica.node.view.durable_index >= written, "durable")
        return await entries(session, after)

    sessions.entries = after_an_uncommitted_one
    await fleet.order(3, leader)
    await fleet.copied(3)
    assert len(requests) > 1
    assert replica.node.last.index > replica.node.commit_index
    copied = fleet.replica(3)
    assert copied.status().last.index == replica.node.commit_index
    await fleet.until(lambda: copied.status().applied == copied.status().last, "it is applied")
    assert fleet.machine(3).sums == {"k": 40}


@scenario()
async def test_target_requesting_twice_holds_one_session_and_releases_it(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    sessions = fleet.host(leader).copies.sessions
    first = fleet.spawn(leader, sessions.begin(GROUP, uuid_of(3)))
    offer = await fleet.as_(leader, sessions.begin(GROUP, uuid_of(3)))
    await fleet.until(lambda: bool(first), "both are answered")
    assert isinstance(first[0], SessionExpired)
    assert len(fleet.machine(leader).held) == 1
    await fleet.as_(leader, sessions.hold(offer.session, end=True))
    assert fleet.machine(leader).held == []


@scenario()
async def test_cancelled_call_during_checkpoint_holds_nothing(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    copies = fleet.host(leader).copies
    machine = fleet.machine(leader)
    tasks: list[asyncio.Task[object]] = []

    class Slow(PartsMachine):
        def checkpoint(self) -> AnyCheckpoint:
            tasks[0].cancel()
            return Checkpoint(self)

    machine.__class__ = Slow

    async def begin():
        tasks.append(asyncio.ensure_future(copies.sessions.begin(GROUP, uuid_of(3))))
        await asyncio.gather(tasks[0], return_exceptions=True)

    await fleet.as_(leader, begin())
    assert tasks[0].cancelled()
    await fleet.pass_ms(100)
    assert machine.held == []
    assert fleet.sessions() == 0


@scenario()
async def test_copy_completes_under_continuous_writes(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    sessions = fleet.host(leader).copies.sessions
    entries, calls = sessions.entries, []

    async def busy(session, after):
        calls.append(after)
        assert len(calls) < 100, "the log is fetched without end"
        await fleet.write(b"k 1")
        return await entries(session, after)

    sessions.entries = busy
    await fleet.order(3, leader)
    await fleet.copied(3)
    await add(fleet, 3)
    await fleet.until(lambda: fleet.stage(3) is CopyStage.DONE, "a member")
    await fleet.settled()
    assert fleet.machine(3).sums == fleet.machine(leader).sums


@scenario()
async def test_failed_sync_ends_copy_after_source_is_gone(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    sessions, reads = fleet.host(leader).copies.sessions, []
    read = sessions.read

    async def cut_off(session, name, offset):
        reads.append(name)
        if len(reads) == 3:
            raise Unavailable("the connection is cut")
        return await read(session, name, offset)

    sessions.read = cut_off
    staging = copy_files.Staging
    append, failed = staging.append, list[bool]()

    def due(self, data):
        append(self, data)
        return True

    def broken(self):
        if not failed:
            failed.append(True)
            raise OSError(errno.EIO, "the disk lost a page")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "append", due)
        patch.setattr(staging, "sync", broken)
        await fleet.order(3, leader)
        err = await fleet.refused(3)
    assert failed
    assert isinstance(err, OSError), err
    assert err.errno == errno.EIO
    await nothing_changed(fleet)


@scenario(options=SLOW)
async def test_source_keeps_session_of_slow_copy(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    await fleet.order(3, leader)
    progress = await fleet.copied(3, timeout_ms=200_000)
    assert progress.retries == 0


@scenario()
async def test_session_end_failure_does_not_block_other_sessions(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    copies, machine = fleet.host(leader).copies, fleet.machine(leader)
    for target in (3, 4):
        await fleet.as_(leader, copies.sessions.begin(GROUP, uuid_of(target)))
    sweep, failed = machine.sweep, list[bool]()

    def broken():
        if not failed:
            failed.append(True)
            raise OSError(errno.EIO, "the disk is gone for a moment")
        sweep()

    machine.sweep = broken
    await fleet.pass_ms(200_000)
    assert failed
    assert fleet.sessions() == 0
    assert machine.held == []
    assert fleet.replica(leader).node.core.copy_retain_index == 0


@scenario()
async def test_copy_session_refuses_unknown_file_and_offset(fleet):
    await fill(fleet)
    leader = await flush(fleet)
    sessions = fleet.host(leader).copies.sessions
    offer = await fleet.as_(leader, sessions.begin(GROUP, uuid_of(3)))
    first, *_, manifest = offer.files
    for name, offset in (("../instance", 0), ("", 0), (first.name, first.size_bytes + 1),
                         (first.name, 2**64 - 1)):  # fmt: skip
        with pytest.raises(InvalidArgument, match="has no file"):
            await fleet.as_(leader, sessions.read(offer.session, name, offset))
    ends = (first.name, first.size_bytes), (manifest.name, manifest.size_bytes)
    for name, offset in (*ends, (manifest.name, 2**64 - 1)):
        assert await fleet.as_(leader, sessions.read(offer.session, name, offset)) == b""


@scenario(options=LIMITED)
async def test_disk_space_for_one_copy_admits_one_of_two(fleet):
    """Together both would fill the disk, and neither would end."""
    for number in range(3):
        await fleet.create(number, OTHER)
    await fill(fleet)
    leader = await flush(fleet)
    for _ in range(20):
        await fleet.write(b"k 1", group=OTHER)
    other = await fleet.leader(OTHER)
    await fleet.as_(other, fleet.replica(other, OTHER).flush())
    await fleet.order(3, leader)
    await fleet.until(lambda: fleet.progress(3).bytes_done > 1000, "the transfer has begun")
    files, size = fleet.processes[3].env.files, fleet.progress(3).bytes_total
    reserve = Options().wal_reserve_mb << 20
    left = size - fleet.progress(3).bytes_done
    files.free_bytes = lambda _: left + size + reserve - 1
    await fleet.order(3, other, group=OTHER)
    err = await fleet.refused(3, group=OTHER)
    assert isinstance(err, OSError)
    assert err.errno == errno.ENOSPC
    await fleet.copied(3)
    files.free_bytes = lambda _: size + reserve
    await fleet.order(3, other, group=OTHER)
    await fleet.copied(3, group=OTHER)
