"""The hybrid clock's ceiling: raised in advance, in the pool, never exceeded before it is durable."""

import asyncio
from unittest import mock

import pytest

from nyala.common.errors import Unavailable
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.env.clock import CEILING_STEP_US, MARGIN, HybridClock
from nyala.env.tasks import Lane
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import SimLoop, run, seeded
from tests.sim.world.tasks import SimClock, SimTasks

SECOND_US = 1_000_000


class SlowTasks(SimTasks):
    """Lanes with a given duration."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__(loop, seeded(1))
        self.seconds = 0.001
        self.jobs: list[Lane] = []

    def _draw_us(self, lane: Lane) -> float:
        self.jobs.append(lane)
        return self.seconds * SECOND_US


class Server:
    """A running server's clock, its disk, and the durable ceiling."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.disk = SimDisk(seeded(2), loop.trace, "s")
        self.files = self.disk.mount()
        self.tasks = SlowTasks(loop)
        self.wall = SimClock(loop)
        self.clock = HybridClock(self.wall, self.files, "/ceiling")
        self.clock.now()
        self.clock.keep(self.tasks)

    def durable(self) -> int:
        return int(self.files.read("/ceiling").split()[0])

    def lag_us(self) -> int:
        return self.wall.wall_us() - to_micros(self.clock.peek())

    async def live(self, seconds: float) -> None:
        """Advance time in ticks, as a host does."""
        for _ in range(round(seconds * 20)):
            self.clock.refresh()
            await self.loop.delay(50_000)
            assert self.clock.peek() < self.durable()


def on_server(fn):
    def test() -> None:
        async def main(loop: SimLoop) -> None:
            await fn(Server(loop))

        run(main)

    test.__doc__ = fn.__doc__
    return test


@on_server
async def test_ceiling_advances_when_half_of_its_range_is_used(server):
    before = server.durable()
    await server.live(2)
    assert server.durable() == before
    await server.live(1)
    assert server.durable() > before
    assert server.tasks.jobs == [Lane.CLOCK]
    await server.live(30)
    assert 10 <= len(server.tasks.jobs) <= 14, "one write for each half of the range"
    assert server.lag_us() <= 0


@on_server
async def test_slow_disk_makes_clock_lag_without_waits(server):
    server.tasks.seconds = 8.0
    last = 0
    for _ in range(400):
        server.clock.refresh()
        stamp = server.clock.now()
        assert last < stamp < server.durable()
        last = stamp
        await server.loop.delay(50_000)
    server.tasks.seconds = 0.001
    await server.live(10)
    assert server.lag_us() <= 0, "the clock catches up with the wall clock"


@on_server
async def test_only_timestamp_above_ceiling_waits_for_disk(server):
    server.tasks.seconds = 1.0
    began = server.loop.now_us()
    near, far = (server.clock.seen + from_micros(s * SECOND_US) for s in (1, 60))
    assert server.clock.merge(near)
    assert not server.clock.merge(far)
    assert server.clock.seen == near, "neither value is changed"
    await server.clock.advance_past(far)
    assert far <= server.clock.seen < server.durable() - MARGIN // 2
    assert SECOND_US <= server.loop.now_us() - began <= 3 * SECOND_US
    assert server.clock.now() > far


@on_server
async def test_failed_ceiling_write_changes_nothing(server):
    far, before = server.clock.seen + from_micros(60 * SECOND_US), server.durable()
    server.disk.faults.capacity_bytes = server.disk.used_bytes()
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            await server.clock.advance_past(far)
        assert server.clock.failure is not None
        assert server.clock.now() < server.durable() == before
    server.disk.faults.capacity_bytes = None
    await server.clock.advance_past(far)
    assert server.clock.failure is None
    assert server.clock.now() > far


@on_server
async def test_exhausted_ceiling_gives_no_timestamp(server):
    server.tasks.seconds = 3600.0
    with mock.patch("nyala.env.clock.MARGIN", 2):
        assert server.clock.merge(server.durable() - 3)
        assert server.clock.now() == server.durable() - 2
        assert server.clock.now() == server.durable() - 1
    with pytest.raises(Unavailable, match="ceiling"):
        server.clock.now()


@on_server
async def test_restart_gives_timestamps_above_all_published(server):
    server.wall.jump(3 * SECOND_US)
    await server.live(1)
    shown = server.clock.peek()
    server.wall.jump(-3600 * SECOND_US)
    again = HybridClock(server.wall, server.disk.mount(), "/ceiling")
    assert again.now() > shown
    assert to_micros(again.now() - shown) <= 2 * CEILING_STEP_US


def test_cancelled_waiter_does_not_cancel_ceiling_write():
    async def main(loop: SimLoop) -> None:
        server = Server(loop)
        server.tasks.seconds = 1.0
        far = server.clock.seen + from_micros(60 * SECOND_US)
        waits = [loop.create_task(server.clock.advance_past(far)) for _ in range(2)]
        await loop.delay(10_000)
        waits[0].cancel()
        await waits[1]
        assert server.clock.seen >= far
        assert isinstance((await asyncio.gather(*waits, return_exceptions=True))[0], BaseException)

    run(main)


@on_server
async def test_merge_of_earlier_stamp_lowers_nothing_and_leaves_room_below_ceiling(server):
    """An answer to the message needs a stamp below the durable ceiling, however old the message's own is."""
    server.tasks.seconds = 100.0
    clock, last = server.clock, server.durable() - MARGIN - 1
    assert clock.merge(last)
    assert clock.merge(last - 5)
    assert clock.seen == last
    assert clock.now() == last + 1
    assert not clock.merge(last - 5)
    assert clock.seen == last + 1
