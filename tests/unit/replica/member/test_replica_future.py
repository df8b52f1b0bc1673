"""Times in the future: reads and writes wait for them, or are refused; no client request moves a clock."""

import pytest

from nyala.common.errors import InvalidArgument, TimedOut
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.ids import OpId
from nyala.common.options import Options
from nyala.raft.messages import AppendEntries, Entry, EntryKind, PeerBatch
from tests.unit.replica.support.replica_support import GROUP, scenario, uuid_of

SECOND_US = 1_000_000
AWAKE = Options(wal_segment_mb=1, raft_quiesce_ms=0)


def furthest_us(fleet):
    """Return the largest lead of a hybrid clock over true time, in microseconds."""
    clocks = [p.server.clock for p in fleet.processes]
    return max(
        to_micros(c.peek()) - p.clock.wall_us()
        for c, p in zip(clocks, fleet.processes, strict=True)
    )


@scenario(options=AWAKE)
async def test_read_in_the_future_waits_without_moving_clock(fleet):
    leader = await fleet.leader()
    began_us = fleet.loop.now_us()
    at = fleet.processes[leader].server.clock.peek() + from_micros(5 * SECOND_US)
    answer = fleet.spawn(leader, fleet.replica(leader).read_point(at, 9000))
    for _ in range(45):
        await fleet.pass_ms(100)
        assert furthest_us(fleet) < SECOND_US // 10
        assert (await fleet.write(b"k 1")).stamp < at
    await fleet.until(lambda: answer, "an answer")
    assert answer == [at]
    assert 5 * SECOND_US <= fleet.loop.now_us() - began_us < 6 * SECOND_US
    assert furthest_us(fleet) < SECOND_US // 10
    assert (await fleet.write(b"k 1")).stamp > at


@scenario(options=AWAKE)
async def test_read_time_beyond_deadline_or_bound_is_refused_immediately(fleet):
    leader = await fleet.leader()
    now = fleet.processes[leader].server.clock.peek()
    began_us = fleet.loop.now_us()
    at = now + from_micros(5 * SECOND_US)
    with pytest.raises(TimedOut, match=r"lies 5\.0 s in the future"):
        await fleet.as_(leader, fleet.replica(leader).read_point(at, 4000))
    at = now + from_micros(11 * SECOND_US)
    with pytest.raises(InvalidArgument, match="clock_max_ahead_ms"):
        await fleet.as_(leader, fleet.replica(leader).read_point(at, 60_000))
    assert fleet.loop.now_us() - began_us < SECOND_US // 10
    assert furthest_us(fleet) < SECOND_US // 10


@scenario(options=AWAKE)
async def test_future_client_time_delays_write_without_moving_clock(fleet):
    leader = await fleet.leader()
    seen = fleet.processes[leader].server.clock.peek() + from_micros(3 * SECOND_US)
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", seen=seen, timeout_ms=9000))
    for _ in range(28):
        await fleet.pass_ms(100)
        assert furthest_us(fleet) < SECOND_US // 10
    assert answer == []
    await fleet.until(lambda: answer, "an answer")
    assert answer[0].stamp > seen
    assert furthest_us(fleet) < SECOND_US // 10
    late = fleet.call(leader, b"k 1", seen=seen + from_micros(9 * SECOND_US), timeout_ms=1000)
    with pytest.raises(TimedOut, match="nothing was done"):
        await fleet.as_(leader, late)
    assert fleet.machine(leader).sums["k"] == 1


@scenario(options=AWAKE)
async def test_far_future_entries_and_closed_times_are_refused(fleet):
    """A leader with a corrected clock may have given wrong timestamps before: its log is refused too."""
    await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    node = fleet.replica(follower).node
    hlc = fleet.processes[follower].server.clock.peek()
    far = hlc + from_micros(3600 * SECOND_US)
    entry = Entry(OpId(node.term, node.last.index + 1), far, EntryKind.NOOP)
    for more in ({"entries": (entry,)}, {"closed": far}):
        message = AppendEntries(
            sender=uuid_of(leader), to=uuid_of(follower), term=node.term, hlc=hlc, previous=node.last,
            commit=node.last.index, **more,
        )  # fmt: skip
        batch = PeerBatch(uuid_of(leader), uuid_of(follower), hlc, ((GROUP, message),))
        fleet.deliver(follower, batch)
        assert node.core.log.last_stamp < far
        assert node.closed < far
    assert furthest_us(fleet) < SECOND_US // 10
