"""Wall clocks that are years wrong, at a start and at runtime: no write is lost, they are not followed."""

from datetime import UTC, datetime

import pytest

from nyala.common.errors import Forbidden
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.options import Options
from nyala.env.clock import write_ceiling
from nyala.offline.clock_ceiling import Lowered, lower
from nyala.replica.status import State
from tests.selected import first
from tests.sim.world.loop import WALL_START_US
from tests.unit.replica.support.replica_support import GROUP, AddingMachine, scenario, uuid_of

AWAKE = Options(wal_segment_mb=1, raft_quiesce_ms=0)
LIMIT_US = AWAKE.clock_max_ahead_ms * 1000


def until(year):
    """Return the jump that sets a clock to June of a year, in microseconds."""
    offset = datetime(year, 6, 1, tzinfo=UTC) - datetime.fromtimestamp(WALL_START_US / 1e6, UTC)
    return int(offset.total_seconds() * 1e6)


def ahead_us(fleet, stamp):
    """Return the lead of a stamp over true time, in microseconds."""
    return to_micros(stamp) - WALL_START_US - fleet.loop.now_us()


async def same_in_the_end(fleet):
    """Check that all servers take part, have all entries, and have clocks that others accept."""
    await fleet.settled()
    await fleet.pass_ms(65_000)  # clock offsets are kept for this time
    for number in range(3):
        assert fleet.replica(number).state is State.RUNNING
        assert ahead_us(fleet, fleet.processes[number].server.clock.peek()) <= LIMIT_US
        assert fleet.host(number).problems() == []


@pytest.mark.parametrize("year", first([2038, 1970, 2050]))
@pytest.mark.parametrize("leads", [True, False])
def test_single_clock_wrong_by_decades_does_not_move_other_clocks(year, leads):
    @scenario(options=AWAKE)
    async def steps(fleet):
        first = await fleet.write(b"k 1", sequence=500)
        await fleet.pass_ms(3000)
        wrong = (await fleet.leader() + (not leads)) % 3
        fleet.processes[wrong].clock.jump(until(year))
        for _ in range(10):
            await fleet.write(b"k 1")
            await fleet.pass_ms(500)
        fleet.processes[wrong].clock.jump(-until(year))
        await fleet.pass_ms(5000)
        last = await fleet.write(b"k 1")
        assert abs(ahead_us(fleet, last.stamp)) < 1_000_000
        again = await fleet.write(b"k 1", sequence=500)
        assert (again.duplicate, again.stamp) == (True, first.stamp), "the result has not expired"
        await same_in_the_end(fleet)

    steps()


@pytest.mark.parametrize("year", first([1970, 2038, 2050]))
@pytest.mark.parametrize("down_s", [1, 60])
def test_server_starting_with_clock_wrong_by_decades_follows_majority(year, down_s):
    @scenario(options=AWAKE)
    async def steps(fleet):
        await fleet.write(b"k 1")
        await fleet.settled()
        wrong = (await fleet.leader() + 1) % 3
        fleet.processes[wrong].kill(power_cut=True)
        await fleet.pass_ms(1000 * down_s)
        fleet.processes[wrong].clock.jump(until(year))
        await fleet.boot(wrong)
        for _ in range(10):
            await fleet.write(b"k 1")
            await fleet.pass_ms(300)
        await fleet.settled()
        assert ahead_us(fleet, fleet.processes[wrong].server.clock.peek()) <= LIMIT_US
        off, other = ("ahead of", "behind") if year > 2026 else ("behind", "ahead of")
        reported = fleet.host(await fleet.leader()).problems()
        assert any(
            f"wall clock of {uuid_of(wrong)} at s{wrong}:9 is " in s and off in s for s in reported
        )
        reported = fleet.host(wrong).problems()
        assert any(
            "this machine's wall clock is " in s or f"years {other} this" in s for s in reported
        )
        other = 3 - wrong - await fleet.leader()
        fleet.processes[other].kill(power_cut=True)
        await fleet.write(b"k 1")  # the majority includes the server with the wrong clock
        await fleet.boot(other)
        fleet.processes[wrong].clock.jump(-until(year))
        await fleet.pass_ms(5000)
        assert abs(ahead_us(fleet, (await fleet.write(b"k 1")).stamp)) < 1_000_000
        await same_in_the_end(fleet)

    steps()


@pytest.mark.parametrize("restart", first([True, False]))
def test_clocks_that_are_all_set_back_stop_nothing(restart):
    """A time daemon corrects all machines, or all of them start with a clock of long ago."""

    @scenario(options=AWAKE)
    async def steps(fleet):
        stamps = [(await fleet.write(b"k 1")).stamp]
        await fleet.pass_ms(5000)
        for number, process in enumerate(fleet.processes):
            if restart:
                process.kill(power_cut=True)
            process.clock.jump(-60_000_000)
            await fleet.pass_ms(300 * number)
        for number in range(3) if restart else ():
            await fleet.boot(number)
        for _ in range(10):
            stamps.append((await fleet.write(b"k 1")).stamp)
            await fleet.pass_ms(1000)
        assert stamps == sorted(stamps)
        passed_us = to_micros(stamps[-1]) - to_micros(stamps[3])
        assert 2_500_000 < passed_us < 4_000_000, "time advances at half the speed"
        (reported,) = fleet.host(0).problems()
        assert reported.startswith("this server's hybrid clock is ")
        await fleet.pass_ms(120_000)
        stamp = (await fleet.write(b"k 1")).stamp
        assert -61_000_000 < ahead_us(fleet, stamp) < -59_000_000, (
            "the hybrid clocks follow the wall clocks again"
        )
        assert fleet.host(0).problems() == []

    steps()


@scenario(options=AWAKE)
async def test_machines_suspended_together_follow_their_clocks_at_once(fleet):
    await fleet.write(b"k 1")
    await fleet.pass_ms(3000)
    for process in fleet.processes:
        process.clock.jump(3_600_000_000)
    await fleet.pass_ms(3000)
    stamp = (await fleet.write(b"k 1")).stamp
    assert 3_599_000_000 < ahead_us(fleet, stamp) < 3_601_000_000
    assert fleet.host(0).problems() == []


@scenario(servers=1, options=AWAKE)
async def test_server_without_peers_follows_its_clock(fleet):
    await fleet.write(b"k 1")
    await fleet.pass_ms(3000)
    fleet.processes[0].clock.jump(3_600_000_000)
    await fleet.pass_ms(100)
    assert 3_599_000_000 < ahead_us(fleet, (await fleet.write(b"k 1")).stamp) < 3_601_000_000


@scenario(options=AWAKE)
async def test_server_that_lost_its_peers_does_not_follow_clock_jump(fleet):
    await fleet.write(b"k 1")
    await fleet.pass_ms(3000)
    leader = await fleet.leader()
    fleet.network.partition([f"s{leader}"], [f"s{n}" for n in range(3) if n != leader])
    await fleet.pass_ms(10_000)
    fleet.processes[leader].clock.jump(until(2050))
    assert abs(ahead_us(fleet, fleet.processes[leader].server.clock.now())) < 1_000_000


@pytest.mark.parametrize("replicas", [True, False])
def test_restarted_server_without_contact_does_not_follow_clock_jump(replicas):
    """Other servers exist without contact: all links are cut, or its replicas were moved away."""

    @scenario(options=AWAKE)
    async def steps(fleet):
        await fleet.write(b"k 1")
        await fleet.settled()
        cut = (await fleet.leader() + 1) % 3
        if not replicas:
            await fleet.as_(cut, fleet.host(cut).delete_replica(GROUP))
        fleet.processes[cut].kill(power_cut=True)
        fleet.network.partition([f"s{cut}"], [f"s{n}" for n in range(3) if n != cut])
        await fleet.boot(cut)
        await fleet.pass_ms(4000)
        fleet.processes[cut].clock.jump(until(2050))
        for _ in range(20):
            await fleet.pass_ms(100)
            assert abs(ahead_us(fleet, fleet.processes[cut].server.clock.now())) < 5_500_000
        assert not any("hybrid clock" in reported for reported in fleet.host(cut).problems())
        fleet.network.heal()
        await fleet.pass_ms(2000)
        assert abs(ahead_us(fleet, (await fleet.write(b"k 1")).stamp)) < 5_500_000
        fleet.processes[cut].clock.jump(-until(2050))
        if replicas:
            await same_in_the_end(fleet)

    steps()


@pytest.mark.parametrize("year", [2038, 2050])
def test_server_with_hybrid_clock_far_ahead_is_refused_and_named(year):
    scenario(options=AWAKE)(lambda fleet: hybrid_clock_in(fleet, year))()


async def hybrid_clock_in(fleet, year):
    await fleet.write(b"k 1")
    await fleet.settled()
    leader = await fleet.leader()
    wrong = (leader + 1) % 3
    process = fleet.processes[wrong]
    process.kill(power_cut=True)
    ceiling = from_micros(WALL_START_US + until(year))
    write_ceiling(process.disk.mount(), "/data/hybrid_clock", ceiling)
    await fleet.boot(wrong)
    for _ in range(5):
        await fleet.write(b"k 1")
        await fleet.pass_ms(500)
    assert abs(ahead_us(fleet, (await fleet.write(b"k 1")).stamp)) < 1_000_000
    (reported,) = fleet.host(leader).problems()
    assert reported.startswith(
        f"all that {uuid_of(wrong)} at s{wrong}:9 sends is refused: its hybrid clock is "
    )
    assert "years ahead" in reported
    (own,) = fleet.host(wrong).problems()
    assert own.startswith("this server's hybrid clock is ")
    assert "years ahead" in own
    registry = fleet.processes[leader].server.metrics.registry
    assert registry.get_sample_value("nyala_clock_refused_servers") == 1
    assert registry.get_sample_value("nyala_replica_refused_messages_total", {"why": "clock"}) > 5
    assert fleet.replica(leader, GROUP).status().last.index > 5


@scenario(options=AWAKE)
async def test_server_with_ceiling_of_2050_starts_after_ceiling_is_lowered(fleet):
    await fleet.write(b"k 1")
    await fleet.settled()
    wrong = (await fleet.leader() + 1) % 3
    process = fleet.processes[wrong]
    process.kill(power_cut=True)
    files = process.disk.mount()
    write_ceiling(files, "/data/hybrid_clock", from_micros(WALL_START_US + until(2050)))
    await fleet.boot(wrong)
    for _ in range(5):
        await fleet.write(b"k 1")
        await fleet.pass_ms(500)
    assert fleet.replica(wrong).status().last < fleet.replica(fleet.leading()).status().last
    process.kill(power_cut=True)
    files = process.disk.mount()

    def cut(_group, path):
        return AddingMachine(files, path).flush_point.stamp

    done = lower(files, "/data", process.clock, AWAKE.clock_max_ahead_ms, cut)
    assert ahead_us(fleet, done.before) > 0
    assert ahead_us(fleet, done.after) == pytest.approx(LIMIT_US, abs=1000)
    await fleet.boot(wrong)
    await fleet.write(b"k 1")
    await fleet.pass_ms(15_000)
    assert abs(ahead_us(fleet, (await fleet.write(b"k 1")).stamp)) < 2_000_000
    await same_in_the_end(fleet)
    process.kill(power_cut=True)
    files = process.disk.mount()
    assert lower(files, "/data", process.clock, AWAKE.clock_max_ahead_ms, cut) == Lowered(
        *[int(files.read("/data/hybrid_clock").split()[0])] * 2
    )
    process.clock.jump(until(1980))
    with pytest.raises(Forbidden, match="entries stamped 4"):
        lower(files, "/data", process.clock, AWAKE.clock_max_ahead_ms, cut)
