"""Ticks: together while nothing is due, before each event, none of a timeout without a wake-up of its own."""

import pytest

from nyala.env.env import Env
from nyala.replica.context import Counters
from nyala.replica.multiraft.ticker import Ticker
from tests.sim.world.loop import run, seeded
from tests.sim.world.tasks import SimClock, SimTasks
from tests.unit.replica.support.replica_support import GROUP, scenario

TICK_MS = 50


class Ticks:
    """A ticker whose sleeps the test plans: `idle` ticks each."""

    def __init__(self, loop, idle, drift_ppm=0):
        self.loop, self.idle = loop, idle
        self.clock = SimClock(loop, drift_ppm=drift_ppm)
        self.counted: list[tuple[int, int]] = []  # (milliseconds since the start, ticks)
        self.late_us: list[int] = []
        tasks = SimTasks(loop, seeded(1), clock=self.clock)
        env = Env(self.clock, seeded(2), None, tasks, None)  # type: ignore[arg-type]
        self.ticker = Ticker(
            env,
            TICK_MS,
            idle=lambda: self.idle,
            process=lambda n: self.counted.append((self.clock.monotonic_us() // 1000, n)),
            note_late=self.late_us.append,
        )

    async def pass_ms(self, duration_ms):
        await self.loop.delay(duration_ms * 1000)


def with_ticks(work, idle, **more):
    async def main(loop):
        await work(Ticks(loop, idle, **more))

    run(main)


def test_ticks_are_processed_one_by_one_while_something_is_due():
    async def work(ticks):
        await ticks.pass_ms(210)
        assert ticks.counted == [(50, 1), (100, 1), (150, 1), (200, 1)]
        ticks.ticker.catch_up()
        ticks.ticker.changed()
        await ticks.pass_ms(10)
        assert len(ticks.counted) == 4

    with_ticks(work, 1)


def test_ticks_are_processed_together_while_nothing_is_due():
    async def work(ticks):
        await ticks.pass_ms(410)
        assert ticks.counted == [(200, 4), (400, 4)]
        assert ticks.late_us == [0, 0]

    with_ticks(work, 4)


def test_ticks_that_have_passed_are_processed_before_an_event():
    async def work(ticks):
        await ticks.pass_ms(120)
        ticks.ticker.catch_up()
        ticks.ticker.catch_up()
        assert ticks.counted == [(120, 2)]
        await ticks.pass_ms(90)
        assert ticks.counted == [(120, 2), (200, 2)]

    with_ticks(work, 4)


def test_event_that_makes_something_due_ends_the_sleep_at_the_next_tick():
    async def work(ticks):
        await ticks.pass_ms(120)
        ticks.ticker.catch_up()
        ticks.idle = 1
        ticks.ticker.changed()
        await ticks.pass_ms(85)
        assert ticks.counted == [(120, 2), (150, 1), (200, 1)]

    with_ticks(work, 4)


def test_stopped_process_counts_no_more_ticks_than_it_planned_to_sleep():
    async def work(ticks):
        await ticks.pass_ms(10)
        ticks.clock.lose(-60_000_000)
        ticks.ticker.catch_up()
        assert [n for _, n in ticks.counted] == [3], "the last one has a wake-up of its own"
        await ticks.pass_ms(200)
        assert [n for _, n in ticks.counted] == [3, 1]
        assert ticks.late_us == [60_000_000]

    with_ticks(work, 4)


@pytest.mark.parametrize("drift_ppm", [-100_000, 100_000])
def test_ticks_go_by_the_clock_of_the_process(drift_ppm):
    async def work(ticks):
        await ticks.pass_ms(10_000)
        passed = sum(n for _, n in ticks.counted)
        assert 0.85 <= passed * TICK_MS * 1000 / ticks.clock.monotonic_us() <= 1

    with_ticks(work, 4, drift_ppm=drift_ppm)


def test_process_wakes_rarely_without_groups_and_half_as_often_for_a_quiesced_one(monkeypatch):
    wakes = []
    monkeypatch.setattr(Counters, "note_late_tick", lambda counters, by_us: wakes.append(by_us))

    @scenario(groups=())
    async def work(fleet):
        await fleet.pass_ms(2000)
        assert len(wakes) == 3 * 10, "each 200 ms"
        for number in range(3):
            await fleet.create(number, GROUP)
        leader = await fleet.leader()
        await fleet.pass_ms(5000)
        wakes.clear()
        await fleet.pass_ms(2000)
        assert len(wakes) <= 3 * 21, "for a keepalive each 100 ms"
        fleet.processes[leader].kill()
        assert await fleet.leader() != leader

    work()


@scenario()
async def test_member_with_a_pending_request_does_not_sleep(fleet):
    leader = await fleet.leader()
    await fleet.write(b"k 1")
    for process in fleet.processes:
        if process is not fleet.processes[leader]:
            process.kill()
    fleet.spawn(leader, fleet.call(leader, b"k 1"))
    member = fleet.replica(leader).member
    await fleet.until(lambda: member.requests.pending, "the write is pending")
    await fleet.until(lambda: member.node.view.idle_ticks > 1, "nothing else is due")
    assert member.idle_ticks() == 1
