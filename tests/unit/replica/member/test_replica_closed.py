"""Closed time: followers serve old enough reads only, never incomplete ones; idle groups quiesce."""

from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import NotLeader
from nyala.common.hybrid_time import from_micros
from nyala.replica.member.closed_time import KEEP_FRESH_MS, ClosedTime
from tests.unit.replica.support.replica_support import scenario, uuid_of


async def stale(fleet, number, max_age_ms, **more):
    return await fleet.as_(number, fleet.replica(number).stale_point(max_age_ms, 3000, **more))


def closed(fleet, number):
    return fleet.replica(number).status().closed


async def follower_of(fleet):
    return (await fleet.leader() + 1) % 3


@scenario()
async def test_followers_receive_closed_time_of_completed_writes(fleet):
    outcome = await fleet.write(b"k 1")
    await fleet.until(
        lambda: all(closed(fleet, n) >= outcome.stamp for n in range(3)),
        "the write is below the closed time",
    )
    for n in range(3):
        at, age_ms = await stale(fleet, n, 1000)
        assert at >= outcome.stamp
        assert age_ms <= 1000
        assert fleet.machine(n).sums == {"k": 1}


@scenario()
async def test_idle_group_sends_nothing_and_closed_time_stops(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    await fleet.pass_ms(1000)
    node = fleet.replica(leader).node
    before = node.core.round, closed(fleet, leader)
    await fleet.pass_ms(5000)
    assert (node.core.round, closed(fleet, leader)) == before


@scenario()
async def test_closed_time_advances_once_per_heartbeat(fleet):
    leader = await fleet.leader()
    await fleet.pass_ms(1000)
    node, counts = fleet.replica(leader).node, fleet.loop.trace.counts
    before = counts["peer_sent"]
    await fleet.pass_ms(2000)
    quiet = counts["peer_sent"] - before
    with pytest.raises(NotLeader):
        await stale(fleet, (leader + 1) % 3, 0)
    await stale(fleet, leader, 0)  # stale reads are sent, so that its time is closed
    await fleet.pass_ms(100)
    rounds, before = node.core.round, counts["peer_sent"]
    await fleet.pass_ms(2000)
    assert 15 <= node.core.round - rounds <= 20
    assert counts["peer_sent"] - before <= quiet + 4


@scenario()
async def test_unapplied_writes_are_not_closed(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    await fleet.pass_ms(1000)
    fleet.processes[leader].delays.apply_us = 10_000_000
    last = fleet.replica(leader).status().last
    answer = fleet.spawn(leader, fleet.call(leader, b"k 1", timeout_ms=60_000))
    follower = (leader + 1) % 3
    await fleet.until(
        lambda: fleet.replica(follower).status().applied > last,
        "the follower has applied the entry",
    )
    stamp = fleet.replica(leader).node.last_stamp
    looks = 0
    while not answer:
        assert all(closed(fleet, n) < stamp for n in range(3)), (
            "the leader has not applied the write"
        )
        await fleet.pass_ms(10)
        looks += 1
    assert looks > 30
    await fleet.until(
        lambda: closed(fleet, follower) >= stamp, "the write is below the closed time"
    )


@scenario()
async def test_follower_uses_closed_time_after_applying_entries_below_it(fleet):
    follower = await follower_of(fleet)
    await fleet.pass_ms(1000)
    fleet.processes[follower].delays.apply_us = 1_000_000
    outcome = await fleet.write(b"k 1")
    while fleet.machine(follower).sums == {}:
        assert closed(fleet, follower) < outcome.stamp
        offered = fleet.replica(follower).member.closed_time.read_time(60_000, 0)
        assert offered is None or offered[0] < outcome.stamp
        await fleet.pass_ms(20)
    await fleet.until(
        lambda: closed(fleet, follower) >= outcome.stamp, "the follower's closed time has advanced"
    )


@scenario()
async def test_closed_time_does_not_advance_without_majority(fleet):
    leader = await fleet.leader()
    outcome = await fleet.write(b"k 1")
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in range(3) if n != leader])
    found = fleet.spawn(leader, fleet.replica(leader).stale_point(0, 200))
    before = closed(fleet, leader)
    await fleet.pass_ms(450)
    assert fleet.replica(leader).is_leader, "the old leader does not know its successor yet"
    assert closed(fleet, leader) == before
    await fleet.until(lambda: found, "an error")
    assert isinstance(found[0], Exception)
    assert outcome.stamp > 0


@pytest.mark.parametrize("skew_ms", [0, -8000, 8000])
def test_stale_read_beyond_bound_is_refused_with_leader_hint(skew_ms):
    @scenario()
    async def steps(fleet):
        follower = await follower_of(fleet)
        fleet.processes[follower].clock.jump(skew_ms * 1000)
        await fleet.write(b"k 1")
        await fleet.until(lambda: closed(fleet, follower), "the write is below the closed time")
        fleet.network.partition([f"s{follower}"], [f"s{n}" for n in range(3) if n != follower])
        await fleet.pass_ms(400)
        _, first = await stale(fleet, follower, 60_000)
        await fleet.pass_ms(2000)
        at, age_ms = await stale(fleet, follower, 60_000)
        assert 2000 <= age_ms - first <= 2001, "the age does not depend on the offset of the clocks"
        assert (await stale(fleet, follower, age_ms)) == (at, age_ms)
        with pytest.raises(NotLeader, match="older than"):
            await stale(fleet, follower, age_ms - 1)

    steps()


@scenario()
async def test_paused_follower_detects_outdated_closed_time(fleet):
    follower = await follower_of(fleet)
    await fleet.write(b"k 1")
    fleet.processes[follower].pause()
    await fleet.write(b"k 1")
    await fleet.pass_ms(3000)
    fleet.processes[follower].resume()
    fleet.network.partition([f"s{follower}"], [f"s{n}" for n in range(3) if n != follower])
    await fleet.until(
        lambda: fleet.machine(follower).sums == {"k": 2},
        "the resumed follower has applied the entries",
    )
    _, age_ms = await stale(fleet, follower, 60_000)
    assert age_ms >= 2500


@scenario()
async def test_stale_read_at_leader_enables_follower_reads_for_a_time(fleet):
    leader = await fleet.leader()
    follower = (leader + 1) % 3
    await fleet.pass_ms(5000)
    with pytest.raises(NotLeader) as caught:
        await stale(fleet, follower, 1000)
    assert caught.value.address == f"s{leader}:7"
    at, age_ms = await stale(fleet, leader, 1000)
    assert age_ms < 100
    assert at > 0
    await fleet.pass_ms(500)
    assert (await stale(fleet, follower, 1000))[0] > at
    await fleet.pass_ms(KEEP_FRESH_MS)
    node = fleet.replica(leader).node
    before = node.core.round
    await fleet.pass_ms(3000)
    assert node.core.round == before, "no stale reads are sent any more"
    with pytest.raises(NotLeader):
        await stale(fleet, follower, 1000)


@pytest.mark.parametrize("skews_ms", [(0, -4000, -4000), (4000, 0, 0)])
def test_later_leader_writes_above_closed_time(skews_ms):
    @scenario()
    async def steps(fleet):
        for process, skew in zip(fleet.processes, skews_ms, strict=True):
            process.clock.jump(skew * 1000)
        old = await fleet.leader()
        await fleet.write(b"k 1")
        follower = (old + 1) % 3
        await fleet.until(
            lambda: closed(fleet, follower), "the follower's closed time has advanced"
        )
        promised, before = closed(fleet, follower), dict(fleet.machine(follower).sums)
        for process in fleet.processes:
            process.kill(power_cut=True)
            process.clock.jump(-30_000_000)
        for number in range(3):
            await fleet.restart(number)
        outcome = await fleet.write(b"k 1")
        assert outcome.stamp > promised
        assert before == {"k": 1}

    steps()


@scenario()
async def test_expired_closed_time_is_not_offered(fleet):
    follower = await follower_of(fleet)
    await fleet.write(b"k 1")
    await fleet.until(lambda: closed(fleet, follower), "the follower's closed time has advanced")
    at, _ = await stale(fleet, follower, 60_000)
    with pytest.raises(NotLeader):
        await stale(fleet, follower, 60_000, min_time=at + 1)
    leader = await fleet.leader()
    assert (await stale(fleet, leader, 60_000, min_time=at + from_micros(1)))[0] > at
    assert fleet.replica(leader).status().config.get(uuid_of(leader)) is not None


def test_age_of_closed_time_includes_time_before_message_was_sent_under_stopped_wall_clock():
    """A leader repeats its closed time in later heartbeats, and the follower's clock does not advance."""
    closed, monotonic_us = from_micros(100_000_000), 7_000_000
    hlc = closed + from_micros(3_000_000)
    clock = SimpleNamespace(monotonic_us=lambda: monotonic_us)
    context: Any = SimpleNamespace(
        env=SimpleNamespace(clock=clock), clock=SimpleNamespace(peek=lambda: hlc)
    )
    view = SimpleNamespace(closed_pending=None)
    node: Any = SimpleNamespace(closed=closed, is_leader=False, view=view)
    watch: Any = None
    time = ClosedTime(context, node, watch, watch, watch)
    message: Any = SimpleNamespace(hlc=hlc)
    time.received(message)
    assert time.read_time(10_000, 0) == (closed, 3000)
    monotonic_us += 2_000_000
    assert time.read_time(10_000, 0) == (closed, 5000)
    assert time.read_time(4_999, 0) is None
