"""Wall clocks that differ: leadership, measured offsets; timestamps after a clock was set back."""

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.ids import NO_OP
from nyala.env.clock import CEILING_STEP_US
from nyala.raft.messages import PeerBatch, RequestVote, VoteReply
from nyala.replica.clock_offsets import LATEST_TTL_US, ClockOffsets
from tests.unit.replica.support.replica_support import GROUP, record_batches, scenario, uuid_of


def offset_ms(fleet, number):
    registry = fleet.processes[number].server.metrics.registry
    return registry.get_sample_value("nyala_clock_offset_ms")


async def keep_writing(fleet, seconds):
    """Writes keep the group active, and the offsets measured."""
    for _ in range(seconds * 5):
        await fleet.write(b"k 1")
        await fleet.pass_ms(200)


@pytest.mark.parametrize("skew_s", [60, -60])
def test_leader_with_clock_far_from_majority_transfers_leadership(skew_s):
    @scenario()
    async def steps(fleet):
        old = await fleet.leader()
        await keep_writing(fleet, 3)
        assert fleet.leading() == old
        fleet.processes[old].clock.jump(skew_s * 1_000_000)
        await keep_writing(fleet, 5)
        assert fleet.leading() not in (None, old)
        assert offset_ms(fleet, old) == pytest.approx(60_000, abs=100)
        term = fleet.replica(fleet.leading()).status().term
        await keep_writing(fleet, 5)
        assert fleet.replica(fleet.leading()).status().term == term, "leadership moves once"

    steps()


@pytest.mark.row("W4")
@scenario()
async def test_disagreeing_clocks_without_majority_cause_no_transfer(fleet):
    leader = await fleet.leader()
    for number, process in enumerate(fleet.processes):
        process.clock.jump(number * 30_000_000)
    term = fleet.replica(leader).status().term
    await keep_writing(fleet, 6)
    assert fleet.leading() == leader
    assert fleet.replica(leader).status().term == term


@scenario()
async def test_process_pause_is_not_measured_as_clock_offset(fleet):
    leader = await fleet.leader()
    await keep_writing(fleet, 3)
    for number in range(3):
        fleet.processes[number].pause()
    await fleet.pass_ms(30_000)
    for number in range(3):
        fleet.processes[number].resume()
    await fleet.until(lambda: fleet.leading() is not None, "a leader")
    leader = fleet.leading()
    term = fleet.replica(leader).status().term
    await keep_writing(fleet, 4)
    assert fleet.replica(fleet.leading()).status().term == term
    assert offset_ms(fleet, leader) < 100


@scenario()
async def test_second_that_a_silence_cut_short_gives_no_offset(fleet):
    """Its only batch may have been delayed for as long as the silence lasted."""
    process, handlers = fleet.processes[0], []
    wire = SimpleNamespace(receive=lambda handler, lost: handlers.append(handler))
    offsets = ClockOffsets(wire, process.clock, 1000)
    offsets.receive(lambda batch: None, lambda server: None)
    request = RequestVote(sender=uuid_of(1), to=uuid_of(0), term=1, last=NO_OP)

    def hear(late_us: int) -> None:
        handlers[0](fleet_batch(request, process.clock.wall_us() - late_us))

    hear(9_000_000)
    for _ in range(10):
        await fleet.pass_ms(1_000)
        offsets.update()
    hear(1_000)
    assert offsets.known_us() == {}
    await fleet.pass_ms(1_100)
    hear(2_000)
    assert offsets.known_us() == {uuid_of(1): -1_000}


@scenario()
async def test_batches_that_waited_for_a_stopped_process_give_no_offset(fleet):
    """Neither those that it reads before its first update, nor those of the second after it."""
    process, handlers = fleet.processes[0], []
    wire = SimpleNamespace(receive=lambda handler, lost: handlers.append(handler))
    offsets = ClockOffsets(wire, process.clock, 1000)
    offsets.receive(lambda batch: None, lambda server: None)
    request = RequestVote(sender=uuid_of(1), to=uuid_of(0), term=1, last=NO_OP)

    def hear(late_us: int) -> None:
        handlers[0](fleet_batch(request, process.clock.wall_us() - late_us))

    await fleet.pass_ms(30_000)
    hear(28_000_000)
    offsets.update()
    hear(27_000_000)
    assert offsets.latest_us() == {}
    await fleet.pass_ms(1_000)
    offsets.update()
    hear(2_000)
    assert offsets.latest_us() == {uuid_of(1): -2_000}


@scenario()
async def test_smallest_offset_of_each_second_is_used(fleet):
    class Wire:
        def send(self, address, batch):
            raise AssertionError("nothing is sent")

        def receive(self, handler, lost):
            self.handler, self.lost = handler, lost

    clock, wire = fleet.processes[0].clock, Wire()
    offsets = ClockOffsets(wire, clock, 1000)
    taken: list[PeerBatch] = []
    offsets.receive(taken.append, lambda server: taken.clear())
    request = RequestVote(sender=uuid_of(1), to=uuid_of(0), term=1, last=NO_OP)
    batch = fleet_batch(request, 0)
    wire.handler(batch)
    assert (taken, offsets.known_us()) == ([batch], {}), "a batch without a time gives no offset"
    for late_us in (5_000_000, 1_000, 9_000_000, 2_000):
        wire.handler(fleet_batch(request, clock.wall_us() + 500_000 - late_us))
        await fleet.pass_ms(400)
    assert offsets.known_us() == {uuid_of(1): 499_000}
    await fleet.pass_ms(5_000)
    assert offsets.known_us() == {}, "old offsets expire"
    assert list(offsets.latest_us()) == [uuid_of(1)]
    for number in range(2, 50):
        wire.handler(fleet_batch(replace(request, sender=uuid_of(number)), clock.wall_us()))
        await fleet.pass_ms(2_000)
        offsets.update()
    assert len(offsets) == len(offsets.latest_us()) == LATEST_TTL_US // 2_000_000 - 1


def fleet_batch(message, wall_us):

    return PeerBatch(message.sender, message.to, 0, ((GROUP, message),), wall_us=wall_us)


# ---- the hybrid clock --------------------------------------------------------------------------------


@scenario()
async def test_restart_with_clock_set_back_gives_timestamps_above_all_earlier_ones(fleet):
    received: list[PeerBatch] = []
    for process in fleet.processes:
        record_batches(process, received)
    for _ in range(5):
        await fleet.write(b"k 1")
    passed_on = max(batch.hlc for batch in received)
    for process in fleet.processes:
        process.kill(power_cut=True)
        process.clock.jump(-3600 * 1_000_000)
    for number in range(3):
        await fleet.restart(number)
        clock = fleet.processes[number].server.clock
        ahead_us = to_micros(clock.now()) - to_micros(passed_on)
        assert 0 <= ahead_us <= 2 * CEILING_STEP_US
    outcome = await fleet.write(b"k 1")
    assert outcome.stamp > passed_on


@scenario()
async def test_vote_carries_hybrid_time_of_the_voter(fleet):
    """The first message of the new leader after its votes has a hybrid time above the voters' clocks."""
    old = await fleet.leader()
    await fleet.write(b"k 1")
    voter, other = (n for n in range(3) if n != old)
    far = fleet.processes[voter].server.clock.now() + from_micros(8_000_000)
    await fleet.as_(
        voter, fleet.processes[voter].server.clock.advance_past(far)
    )  # as a read that joined its round would
    received: list[PeerBatch] = []
    record_batches(fleet.processes[voter], received)
    fleet.processes[old].kill()
    await fleet.leader(among=[voter, other])
    votes = [
        (m, b.hlc)
        for b in received
        for _, m in b.messages
        if isinstance(m, VoteReply | RequestVote)
    ]
    assert votes
    assert all(hlc >= far for _, hlc in votes), "the batch carries it"
    assert (await fleet.write(b"k 1")).stamp > far
