"""Reads at a time: with all acknowledged writes, never from a deposed leader, repeatable."""

import asyncio

import pytest

from nyala.common.errors import InvalidArgument, NotLeader, TimedOut
from nyala.common.hybrid_time import from_micros
from nyala.common.options import Options
from nyala.env.clock import SystemClock
from nyala.replica.member.reading.pending_reads import PendingReads, ReadKind
from nyala.replica.member.transactions.prepared import ANY_TIME
from nyala.replica.member.transactions.waiting import WaitingRequests
from nyala.replica.status import State
from tests.unit.replica.support.replica_support import GROUP, scenario


async def read(fleet, number, at=None, timeout_ms=3000):
    return await fleet.as_(number, fleet.replica(number).read_point(at, timeout_ms))


@pytest.mark.row("S4.29")
@scenario()
async def test_read_contains_every_earlier_acknowledged_write(fleet):
    leader = await fleet.leader()
    fleet.processes[leader].delays.apply_us = 20_000  # applying is slow
    for n in range(1, 6):
        outcome = await fleet.as_(leader, fleet.call(leader, b"k 1"))
        at = await read(fleet, leader)
        assert at > outcome.stamp
        assert fleet.machine(leader).sums["k"] == n


@pytest.mark.row("S4.29")
@scenario()
async def test_write_after_read_has_higher_timestamp(fleet):
    """A write in the same microsecond as the read has a later time."""
    leader = await fleet.leader()
    replica, clock = fleet.replica(leader), fleet.processes[leader].server.clock
    requests = replica.running_member().requests

    async def soon(at: int) -> None:
        replica.start_read(at, 3000)

    for ask in (soon, lambda at: requests.wait_readable(at, fleet.loop.now_us() + 3_000_000)):
        await fleet.pass_ms(10)
        at = clock.peek()
        await fleet.as_(leader, ask(at))
        assert clock.seen >= at
        assert clock.now() > at


@scenario()
async def test_follower_refuses_read_in_the_future_at_once(fleet):
    """It neither waits for that time nor judges it: the leader does."""
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    clock = fleet.processes[follower].server.clock
    for ahead_s in (2, 1_000_000):
        at, began = clock.peek() + from_micros(ahead_s * 1_000_000), fleet.loop.now_us()
        with pytest.raises(NotLeader):
            await fleet.as_(follower, fleet.replica(follower).read_point(at, 10_000))
        assert fleet.loop.now_us() == began


@scenario()
async def test_read_waits_for_pending_writes_below_its_time(fleet):
    leader = await fleet.leader()
    fleet.processes[leader].delays.apply_us = 200_000
    last = fleet.replica(leader).status().last.index
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1"))
    await fleet.until(lambda: fleet.replica(leader).status().last.index > last, "proposed")
    assert fleet.machine(leader).sums == {}
    at = await read(fleet, leader)
    assert fleet.machine(leader).sums == {"k": 1}
    await fleet.until(lambda: answer, "an answer")
    assert answer[0].stamp < at


@scenario()
async def test_read_of_past_does_not_wait_for_newer_writes(fleet):
    first = await fleet.write(b"k 1")
    second = await fleet.write(b"k 1")
    leader = await fleet.leader()
    await fleet.until(
        lambda: fleet.replica(leader).status().applied_stamp >= second.stamp, "applied"
    )
    fleet.processes[leader].delays.apply_us = 10_000_000
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", timeout_ms=60_000))
    await fleet.pass_ms(50)
    assert await read(fleet, leader, at=first.stamp, timeout_ms=1000) == first.stamp
    assert answer == []


@pytest.mark.row("S4.29")
@scenario()
async def test_deposed_leader_serves_no_reads(fleet):
    old = await fleet.leader()
    await fleet.write(b"k 1")
    others = [n for n in range(3) if n != old]
    fleet.processes[old].pause()
    new = await fleet.leader(among=others)
    fleet.network.partition([f"s{old}"], [f"s{n}" for n in others])
    fleet.processes[old].resume()
    assert fleet.replica(old).is_leader, "the old leader does not know its successor yet"
    late = fleet.spawn(old, fleet.replica(old).read_point(None, 60_000))
    soon = fleet.spawn(old, fleet.replica(old).read_point(None, 50))
    assert (await fleet.as_(new, fleet.call(new, b"k 1"))).result == b"2"
    assert await read(fleet, new) > 0
    await fleet.until(lambda: late and soon, "errors")
    assert isinstance(late[0], NotLeader)
    assert isinstance(soon[0], TimedOut | NotLeader)


@scenario()
async def test_follower_refuses_read_and_names_leader(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    await fleet.until(
        lambda: fleet.replica(follower).state is State.RUNNING,
        "the follower knows that its group runs",
    )
    with pytest.raises(NotLeader) as caught:
        await read(fleet, follower)
    assert caught.value.address == f"s{leader}:7"


@pytest.mark.parametrize("skews_ms", [(0, -4000, -4000), (4000, 0, 0), (0, 0, 0)])
def test_no_leader_writes_at_or_below_a_time_that_was_read(skews_ms):
    @scenario()
    async def steps(fleet):
        for process, skew in zip(fleet.processes, skews_ms, strict=True):
            process.clock.jump(skew * 1000)
        old = await fleet.leader()
        await fleet.write(b"k 1")
        clock = fleet.processes[old].server.clock
        promised = await read(
            fleet, old, at=clock.peek() + from_micros(3_000_000), timeout_ms=10_000
        )
        before = fleet.machine(old).sums["k"]
        fleet.processes[old].kill(power_cut=True)
        others = [n for n in range(3) if n != old]
        new = await fleet.leader(among=others)
        outcome = await fleet.as_(new, fleet.call(new, b"k 1"))
        assert outcome.stamp > promised
        assert await read(fleet, new, at=promised) == promised
        assert before == 1

    steps()


@scenario()
async def test_no_write_at_or_below_read_time_after_power_failure_of_all(fleet):
    leader = await fleet.leader()
    clock = fleet.processes[leader].server.clock
    promised = await read(fleet, leader, at=clock.peek() + from_micros(5_000_000), timeout_ms=6000)
    for process in fleet.processes:
        process.kill(power_cut=True)
        process.clock.jump(-60_000_000)
    for number in range(3):
        await fleet.restart(number)
    assert (await fleet.write(b"k 1")).stamp > promised


@pytest.mark.row("W4")
@scenario(options=Options(wal_segment_mb=1, clock_max_ahead_ms=1000))
async def test_read_time_too_far_ahead_is_refused_without_moving_clock(fleet):
    leader = await fleet.leader()
    clock = fleet.processes[leader].server.clock
    before = clock.peek()
    with pytest.raises(InvalidArgument, match="clock_max_ahead_ms"):
        await read(fleet, leader, at=before + from_micros(5_000_000))
    assert clock.peek() - before < from_micros(100_000)
    near = before + from_micros(900_000)
    assert await read(fleet, leader, at=near) == near


@pytest.mark.row("A7")
@scenario(options=Options(wal_segment_mb=1, clock_max_ahead_ms=1000))
async def test_write_timestamp_is_above_valid_client_observed_time(fleet):
    """Otherwise a snapshot could have a client's later write, and lack its earlier one in another group."""
    leader = await fleet.leader()
    clock = fleet.processes[leader].server.clock
    near = clock.peek() + from_micros(900_000)
    outcome = await fleet.as_(leader, fleet.call(leader, b"k 1", seen=near))
    assert near < outcome.stamp < near + from_micros(100_000)
    far = clock.peek() + from_micros(60_000_000)
    outcome = await fleet.as_(leader, fleet.call(leader, b"k 1", seen=far))  # taken: W4
    assert outcome.stamp < near + from_micros(1_000_000)


def waiting(*reads, kind=ReadKind.SNAPSHOT):
    """Futures of reads given as (at, round, upto), and the reads."""
    waiting = PendingReads(WaitingRequests(SystemClock()))
    return waiting, [waiting.add(at, number, upto, 1000, kind) for at, number, upto in reads]


def on_a_loop(fn):
    """Run a plain test where futures can be made."""

    def wrapped():
        async def main():
            fn()

        asyncio.run(main())

    wrapped.__name__ = fn.__name__
    return wrapped


@on_a_loop
def test_read_is_ready_when_round_is_confirmed_and_entries_applied():
    reads, (one, two, three) = waiting((10, 1, 5), (20, 2, 6), (30, 3, 6))
    reads.complete(9, 99, ANY_TIME)
    assert not one.done(), "applied, not confirmed"
    reads.confirmed(2)
    reads.complete(4, 9, ANY_TIME)
    assert not one.done(), "confirmed, not applied"
    reads.complete(5, 15, ANY_TIME)
    assert one.result() == 10
    assert not two.done(), "entries with timestamps below 20 may follow"
    reads.complete(6, 18, ANY_TIME)
    assert two.result() == 20, "all entries of the leader's log are applied"
    assert not three.done(), "the read belongs to a later round"
    assert len(reads) == 1


@on_a_loop
def test_read_of_past_needs_only_entries_below_it():
    reads, (one, two) = waiting((10, 1, 50), (20, 1, 50))
    reads.confirmed(1)
    reads.complete(7, 19, ANY_TIME)
    assert one.result() == 10
    assert not two.done()


@on_a_loop
def test_reads_fail_at_deadline_or_lost_leadership():
    reads, (one,) = waiting((10, 1, 5))
    reads.expire(999)
    assert not one.done()
    reads.expire(1000)
    assert isinstance(one.exception(), TimedOut)
    two = reads.add(20, 2, 5, 9000, ReadKind.SNAPSHOT)
    reads.end(NotLeader("gone"))
    assert isinstance(two.exception(), NotLeader)
    reads.confirmed(2)
    reads.complete(9, 99, ANY_TIME)
    assert len(reads) == 0


@on_a_loop
def test_read_waits_until_no_prepared_transaction_can_be_visible_at_its_time():
    reads, (early, late) = waiting((10, 1, 5), (20, 1, 5))
    reads.confirmed(1)
    assert reads.complete(5, 15, 10) == 10
    assert early.result() == 10
    assert not late.done(), "a transaction that was prepared at 10 may commit at 15"
    assert reads.complete(5, 15, 24) == 20, "its commit time is 25"
    assert late.result() == 20


@on_a_loop
def test_latest_read_that_waited_is_answered_at_applied_stamp_once_nothing_is_prepared():
    reads, (read, free) = waiting((20, 1, 5), (8, 1, 5), kind=ReadKind.LATEST)
    reads.confirmed(1)
    assert reads.complete(5, 15, 10) == 8
    assert free.result() == 8, "it did not have to wait"
    reads.complete(6, 30, 28)
    assert not read.done(), "another transaction is prepared"
    assert reads.complete(7, 31, ANY_TIME) == 20, "the time that is published is its own"
    assert read.result() == 31


@on_a_loop
def test_closing_round_closes_what_is_readable():
    reads, (round_,) = waiting((20, 1, 5), kind=ReadKind.CLOSING)
    reads.confirmed(1)
    assert reads.complete(5, 15, 10) == 10
    assert round_.result() == 10


@on_a_loop
def test_read_behind_a_prepared_transaction_fails_with_its_cause():
    reads, (read,) = waiting((20, 1, 5))
    reads.confirmed(1)
    reads.complete(5, 15, 10)
    reads.expire(1000)
    with pytest.raises(TimedOut, match="a transaction is prepared in this tablet"):
        read.result()


@scenario()
async def test_reads_of_one_loop_iteration_share_a_round(fleet):
    leader = await fleet.leader()
    sent = fleet.loop.trace.counts["peer_sent"]
    reads = [fleet.replica(leader).read_point(None, 3000) for _ in range(100)]
    times = await fleet.as_(leader, asyncio.gather(*reads))
    assert len(set(times)) == 100
    assert fleet.loop.trace.counts["peer_sent"] - sent < 12


@scenario(servers=1)
async def test_single_replica_group_serves_reads_alone(fleet):
    await fleet.write(b"k 1")
    leader = await fleet.leader()
    assert await read(fleet, leader) > 0
    assert fleet.machine(leader).sums == {"k": 1}
    assert GROUP in fleet.processes[0].server.changes
