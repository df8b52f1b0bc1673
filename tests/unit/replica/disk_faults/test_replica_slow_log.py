"""A leader whose log's disk is far slower than its peers' transfers leadership once; it is reported."""

import pytest

from nyala.common.errors import NyalaError
from nyala.common.options import Options
from nyala.env.tasks import Lane
from nyala.raft.messages import PeerBatch
from nyala.wal.latency import SLOT_US, Latency
from tests.unit.replica.support.replica_support import scenario, uuid_of

MS = 1000
QUICK = Options(wal_segment_mb=1, slow_log_after_ms=5000, slow_log_backoff_ms=60_000)


def disk_takes(fleet, number: int, milliseconds: float) -> None:
    """Delay every operation of one server's log and of its consensus metadata."""
    tasks = fleet.processes[number].tasks
    draw = type(tasks)._draw_us
    tasks._draw_us = lambda lane: milliseconds * MS if lane is Lane.DISK else draw(tasks, lane)


async def written(fleet, seconds: float, pause_ms: float = 20) -> int:
    """Write sequentially; return the number of acknowledged writes."""
    count, until_us = 0, fleet.loop.now_us() + seconds * 1_000_000
    while fleet.loop.now_us() < until_us:
        try:
            await fleet.write(b"k 1")
        except NyalaError:
            await fleet.pass_ms(50)
        else:
            count += 1
        await fleet.pass_ms(pause_ms)
    return count


def metric(fleet, number, name):
    registry = fleet.processes[number].server.metrics.registry
    return registry.get_sample_value(f"nyala_{name}")


def warning(fleet, number):
    return fleet.replica(number).status().warning


@scenario(options=QUICK)
async def test_writes_proceed_at_speed_of_fast_majority(fleet):
    old = await fleet.leader()
    before = await written(fleet, 8)
    disk_takes(fleet, old, 400)
    slow = await written(fleet, 5)
    assert slow < before * (5 / 8) / 5, "the old leader was at least 5 times slower"
    await written(fleet, 5)
    leader = await fleet.leader(among=[n for n in range(3) if n != old])
    assert fleet.leading() == leader
    after = await written(fleet, 8)
    assert after > before * 0.8
    assert fleet.leading() == leader


@scenario(options=QUICK)
async def test_unresponsive_disk_counts_as_slow(fleet):
    old = await fleet.leader()
    await written(fleet, 5)
    disk_takes(fleet, old, 60_000)
    await written(fleet, 12)
    assert fleet.leading() not in (None, old)


@pytest.mark.full
@scenario(options=QUICK)
async def test_slow_disk_is_reported_until_recovered(fleet):
    old = await fleet.leader()
    await written(fleet, 6)
    assert [warning(fleet, n) for n in range(3)] == ["", "", ""]
    disk_takes(fleet, old, 400)
    await written(fleet, 8)
    assert "the log's disk is slow: a round of writes takes 400 ms" in warning(fleet, old)
    assert [metric(fleet, n, "wal_disk_slow") for n in range(3)] == [n == old for n in range(3)]
    assert metric(fleet, old, "wal_round_ms") == 400
    assert fleet.replica(old).status().error == "", "the replica continues"
    disk_takes(fleet, old, 0.3)
    await written(fleet, 8)
    assert warning(fleet, old) == ""
    assert metric(fleet, old, "wal_disk_slow") == 0


@scenario(options=QUICK)
async def test_all_slow_disks_cause_no_leadership_transfer(fleet):
    leader = await fleet.leader()
    await written(fleet, 3)
    for number, milliseconds in enumerate((150, 250, 300)):
        disk_takes(fleet, number, milliseconds)
    term = fleet.replica(leader).status().term
    await written(fleet, 15)
    assert (fleet.leading(), fleet.replica(leader).status().term) == (leader, term)


@pytest.mark.full
@scenario(options=QUICK)
async def test_occasional_slow_sync_causes_no_leadership_transfer(fleet):
    leader = await fleet.leader()
    term = fleet.replica(leader).status().term
    for _ in range(10):
        disk_takes(fleet, leader, 800)
        await written(fleet, 0.5)
        disk_takes(fleet, leader, 0.3)
        await written(fleet, 2.5)
    assert (fleet.leading(), fleet.replica(leader).status().term) == (leader, term)


@pytest.mark.full
@scenario(options=QUICK)
async def test_leader_transferred_back_does_not_transfer_again_at_once(fleet):
    """Alternating slow disks move a leader once per back-off, not once per window."""
    old = await fleet.leader()
    await written(fleet, 5)
    moves, leader = 0, old
    for _ in range(8):
        slow = fleet.leading() if fleet.leading() is not None else await fleet.leader()
        for number in range(3):
            disk_takes(fleet, number, 400 if number == slow else 0.3)
        await written(fleet, 7)
        now = await fleet.leader()
        moves, leader = moves + (now != leader), now
    assert 1 <= moves <= 4, "each server transfers leadership once per minute"


@scenario(options=QUICK)
async def test_blocked_event_loop_is_counted(fleet):
    await written(fleet, 1)
    assert metric(fleet, 0, "loop_stalls_count_total") == 0
    fleet.processes[0].pause()
    await fleet.pass_ms(900)
    fleet.processes[0].resume()
    await fleet.pass_ms(200)
    assert metric(fleet, 0, "loop_stalls_count_total") == 1
    assert 700 <= metric(fleet, 0, "loop_stalled_ms_total") <= 900
    assert metric(fleet, 1, "loop_stalls_count_total") == 0


@scenario(servers=1, options=QUICK)
async def test_latencies_of_servers_that_have_gone_are_not_kept(fleet):
    monitor = fleet.replica(0).context.log_disk
    for number in range(100):
        monitor.note(PeerBatch(uuid_of(number + 7), uuid_of(0), 1, (), log_ms=5))
    assert len(monitor) == 100
    await fleet.pass_ms(2 * QUICK.slow_log_after_ms + 200)
    assert monitor.mean_ms() == 0
    assert len(monitor) == 0


@scenario(servers=2, options=QUICK)
async def test_lagging_follower_is_not_chosen_as_successor(fleet):
    """With the other voter down there is no successor; the leader stays."""
    old = await fleet.leader()
    await written(fleet, 3)
    fleet.processes[1 - old].kill()
    disk_takes(fleet, old, 400)
    await fleet.pass_ms(8000)
    assert fleet.replica(old).node.core.leadership is None or (
        fleet.replica(old).node.core.leadership.transfer is None
    )


def clock_and_latency():
    class Clock:
        us = 0

        def monotonic_us(self) -> int:
            return self.us

        def wall_us(self) -> int:
            return self.us

    clock = Clock()
    return clock, Latency(clock)


def test_mean_sync_time_includes_completed_and_hanging_rounds():
    clock, latency = clock_and_latency()
    for _ in range(100):
        latency.round_started()
        clock.us += 1 * MS
        latency.round_ended()
        clock.us += 9 * MS
    load = latency.load(1_000_000)
    assert (load.rounds, load.mean_us) == (pytest.approx(100, abs=30), 1 * MS)
    assert load.busy == pytest.approx(0.1, abs=0.03)
    latency.round_started()
    clock.us += 3_000_000
    load = latency.load(5_000_000)
    assert load.rounds == 101
    assert load.mean_us == pytest.approx(3_100_000 // 101, rel=0.01)
    clock.us += 2_000_000 + SLOT_US
    assert latency.load(5_000_000).rounds == 1
    assert latency.load(5_000_000).busy == 1
    latency.round_ended()
    clock.us += 70_000_000
    assert latency.load(60_000_000).rounds == 0
    latency.round_started()
    latency.round_ended()
    assert latency.load(1 << 60).rounds == 1, "old rounds are dropped"


def test_log_without_clock_measures_no_latency():
    latency = Latency(None)
    latency.round_started()
    latency.round_ended()
    assert latency.load(1_000_000).rounds == 0
