"""Tombstones vote by their term and last op id, each vote durable first; FAILED replicas never vote."""

from contextvars import Context

import pytest

from nyala.common.ids import OpId
from nyala.raft.messages import (
    AppendEntries,
    HardState,
    PeerBatch,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from nyala.replica.status import State
from nyala.replica.superblock import Superblocks
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

LATE = OpId(999, 999)
PROMISED_MS = 320
"""Time for which a new tombstone votes for nobody: its replica may have assured its leader of that."""


class Recorder:
    """Records the messages of server 0 for the group, each with its superblock on disk at that time."""

    def __init__(self, fleet):
        self.fleet = fleet
        self.sent = []
        transport = fleet.processes[0].server.transport
        send = transport.send
        transport.send = lambda address, batch: (self._note(batch), send(address, batch))

    def _note(self, batch):
        saved = self.saved()
        self.sent += [(m, saved) for g, m in batch.messages if g == GROUP]

    def saved(self):
        blocks = Superblocks(self.fleet.processes[0].env.files, "/data")
        block = Context().run(blocks.load, GROUP)  # as the test, not as the server
        assert block is not None
        return block.hard_state

    async def deliver(self, sender, message, **fields):
        """Deliver a message from another server to server 0; return its answers."""
        made = message(sender=uuid_of(sender), to=uuid_of(0), **fields)
        batch = PeerBatch(uuid_of(sender), uuid_of(0), 0, ((GROUP, made),))
        self.sent = []
        self.fleet.deliver(0, batch)
        await self.fleet.pass_ms(100)
        return self.sent


async def with_tombstone(fleet):
    """Delete server 0's replica and stop the others."""
    for _ in range(5):
        await fleet.write(b"k 1")
    await fleet.settled()
    for n in (1, 2):
        fleet.processes[n].kill()
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    await fleet.pass_ms(PROMISED_MS)
    return Recorder(fleet)


@scenario()
async def test_tombstone_vote_is_durable_before_it_is_sent(fleet):
    recorder = await with_tombstone(fleet)
    term = recorder.saved().term + 5
    ((reply, saved),) = await recorder.deliver(1, RequestVote, term=term, last=LATE)
    assert reply.granted
    assert saved == HardState(term, uuid_of(1))
    status = fleet.replica(0).status()
    assert (status.state, status.term, status.vote) == (State.TOMBSTONED, term, uuid_of(1))


@scenario()
async def test_deleted_replica_keeps_the_promise_to_its_leader(fleet):
    """The leader may answer reads by it; only an election that the leader ordered overrides it."""
    await fleet.write(b"k 1")
    await fleet.settled()
    for n in (1, 2):
        fleet.processes[n].kill()
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    for again in (False, True):
        recorder = Recorder(fleet)
        request = {"term": recorder.saved().term + 5, "last": LATE}
        assert await recorder.deliver(1, RequestVote, **request) == []
        if not again:
            fleet.processes[0].kill()
            await fleet.restart(0)
    ((reply, _),) = await recorder.deliver(2, RequestVote, override=True, **request)
    assert reply.granted


@scenario()
async def test_tombstone_votes_once_per_term_across_power_failure(fleet):
    recorder = await with_tombstone(fleet)
    term = recorder.saved().term + 5
    assert (await recorder.deliver(1, RequestVote, term=term, last=LATE))[0][0].granted
    for _ in range(2):
        ((other, _),) = await recorder.deliver(2, RequestVote, term=term, last=LATE)
        assert not other.granted
        ((again, _),) = await recorder.deliver(1, RequestVote, term=term, last=LATE)
        assert again.granted
        fleet.processes[0].kill(power_cut=True)
        await fleet.restart(0)
        await fleet.pass_ms(PROMISED_MS)
        recorder = Recorder(fleet)
    assert recorder.saved() == HardState(term, uuid_of(1))
    ((later, _),) = await recorder.deliver(2, RequestVote, term=term + 1, last=LATE)
    assert later.granted, "the tombstone still has the peers' addresses"


@scenario()
async def test_deleted_replica_refuses_candidate_that_lacks_acknowledged_entries(fleet):
    recorder = await with_tombstone(fleet)
    last = fleet.replica(0).status().last
    term = recorder.saved().term + 5
    for sender in (1, 2):
        before = OpId(last.term, last.index - 1)
        ((reply, saved),) = await recorder.deliver(sender, RequestVote, term=term, last=before)
        assert (reply.granted, saved.vote) == (False, None)
    ((reply, _),) = await recorder.deliver(1, RequestVote, term=term, last=last)
    assert reply.granted
    ((reply, _),) = await recorder.deliver(2, RequestVote, term=term - 1, last=LATE)
    assert not reply.granted


@scenario()
async def test_deleted_replica_with_lost_tail_refuses_candidate_that_lacks_it(fleet):
    """Its leader reported that it had acknowledged more than it has; it is deleted before it gets that."""
    await fleet.write(b"k 1")
    await fleet.settled()
    for n in (1, 2):
        fleet.processes[n].kill()
    core = fleet.replica(0).node.core
    last = core.log.last
    core.lost_last = lost = OpId(last.term, last.index + 1)
    await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
    for _ in range(2):
        await fleet.pass_ms(PROMISED_MS)
        recorder = Recorder(fleet)
        term = recorder.saved().term + 1
        ((reply, _),) = await recorder.deliver(1, RequestVote, term=term, last=last)
        assert not reply.granted
        ((reply, _),) = await recorder.deliver(2, RequestVote, term=term, last=lost)
        assert reply.granted
        fleet.processes[0].kill(power_cut=True)
        await fleet.restart(0)


@scenario()
async def test_deleted_replica_answers_pre_vote_without_saving_a_vote(fleet):
    recorder = await with_tombstone(fleet)
    before = recorder.saved()
    ((reply, saved),) = await recorder.deliver(1, RequestVote, term=99, last=LATE, pre=True)
    assert reply.granted
    assert saved == before


@scenario()
async def test_deleted_replica_never_acknowledges_or_campaigns(fleet):
    recorder = await with_tombstone(fleet)
    before, last = recorder.saved(), fleet.replica(0).status().last
    refused = fleet.refusals(0, "group")
    append = {"previous": last, "commit": last.index}
    assert await recorder.deliver(1, AppendEntries, term=before.term, **append) == []
    assert await recorder.deliver(1, AppendEntries, term=99, **append) == []
    assert await recorder.deliver(1, TimeoutNow, term=99) == []
    assert await recorder.deliver(1, VoteReply, term=99, granted=True) == []
    assert recorder.saved() == before
    assert fleet.refusals(0, "group") == refused + 4


@scenario()
async def test_unsaved_vote_is_not_granted(fleet):
    recorder = await with_tombstone(fleet)
    before = recorder.saved()
    disk = fleet.processes[0].disk
    disk.faults.write_eio_rate = 1.0
    assert await recorder.deliver(1, RequestVote, term=99, last=LATE) == []
    disk.faults.write_eio_rate = 0.0
    assert recorder.saved() == before
    ((reply, saved),) = await recorder.deliver(2, RequestVote, term=99, last=LATE)
    assert reply.granted, "the unsaved vote was not given to the first candidate"
    assert saved == HardState(99, uuid_of(2))


@pytest.mark.row("A10")
@scenario()
async def test_vote_of_tombstone_elects_leader(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    with_tombstone, left = (n for n in range(3) if n != leader)
    await fleet.as_(with_tombstone, fleet.host(with_tombstone).delete_replica(GROUP))
    fleet.processes[leader].kill()
    await fleet.until(lambda: fleet.replica(left).is_leader, "elected by two")
    term = fleet.replica(left).status().term
    assert fleet.replica(with_tombstone).status().vote == uuid_of(left)
    await fleet.pass_ms(300)
    status = fleet.replica(left).status()
    assert status.state is State.CONFIGURING, "no commit, since one of two members has no log"
    assert status.commit < status.last.index
    await fleet.restart(leader)
    assert (await fleet.write(b"k 1")).result == b"2"
    assert fleet.replica(left).status().term >= term


@scenario()
async def test_failed_replica_never_votes(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    for n in (1, 2):
        fleet.processes[n].kill()
    recorder = Recorder(fleet)
    fleet.replica(0).fail(OSError("broken"))
    for pre in (True, False):
        assert await recorder.deliver(1, RequestVote, term=999, last=LATE, pre=pre) == []
    assert fleet.replica(0).state is State.FAILED


@pytest.mark.parametrize("part", ["cmeta", "data"])
def test_unopened_replica_does_not_vote_after_deletion(part):
    @scenario()
    async def deliver(fleet):
        await fleet.write(b"k 1")
        await fleet.settled()
        await fleet.as_(0, fleet.replica(0).flush())
        for process in fleet.processes:
            process.kill()
        names = fleet.processes[0].disk.names.seen
        for directory in [d for d in names if d.startswith(f"/data/{part}")]:
            for name in names[directory]:
                for offset in range(8):
                    fleet.processes[0].disk.flip_bit(f"{directory}/{name}", offset)
        await fleet.restart(0)
        assert fleet.replica(0).state is State.FAILED
        await fleet.as_(0, fleet.host(0).delete_replica(GROUP))
        recorder = Recorder(fleet)
        before = recorder.saved()
        assert await recorder.deliver(1, RequestVote, term=999, last=LATE) == []
        assert recorder.saved() == before
        fleet.processes[0].kill()
        await fleet.restart(0)
        assert fleet.replica(0).state is State.TOMBSTONED
        recorder = Recorder(fleet)
        assert await recorder.deliver(1, RequestVote, term=999, last=LATE) == []

    deliver()
