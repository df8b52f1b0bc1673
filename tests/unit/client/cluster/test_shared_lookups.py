"""Look-ups at the masters that concurrent callers share. In virtual time."""

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any
from unittest import mock

import pytest

from nyala.client.cluster.shared_lookups import SHARED_US, SharedLookups
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.feed.change_wait import wait_for_changes
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import NyalaError, TimedOut, Unavailable
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.unit.client.support.holds import Scenario, scenario

TABLE = pb.TabletLocationsRequest(table_id="t")


class Masters:
    """Masters that answer after some time with the number of the look-up, or with an error.

    Attributes:
        asked: number of look-ups.
        error: answer to each; None: the number.
    """

    def __init__(self, loop: SimLoop, answer_ms: int = 10) -> None:
        self._loop, self._answer_ms = loop, answer_ms
        self.asked = 0
        self.error: NyalaError | None = None
        # This class stands for the masters too, of which only the time is used.
        self.shared = SharedLookups(self, self.ask)  # type: ignore[arg-type]

    def now_us(self) -> int:
        return self._loop.now_us()

    async def ask(self, _request: object, timeout_ms: int) -> pb.TabletLocationsResponse:
        self.asked += 1
        number = self.asked
        await self._loop.delay(min(self._answer_ms, timeout_ms) * 1000)
        if timeout_ms < self._answer_ms:
            raise TimedOut("no master answered")
        if self.error is not None:
            raise self.error
        return pb.TabletLocationsResponse(ranges_version=number)

    async def look_up(self, timeout_ms: int = 5_000, table: str = "t") -> int:
        request = pb.TabletLocationsRequest(table_id=table)
        answer, _ = await self.shared.ask(request, timeout_ms)
        return answer.ranges_version


def test_calls_within_a_tenth_of_a_second_share_one_answer_for_each_table():
    async def work(loop: SimLoop) -> None:
        masters = Masters(loop)
        assert await asyncio.gather(*(masters.look_up() for _ in range(300))) == [1] * 300
        await loop.delay(SHARED_US - 20_000)
        assert await masters.look_up() == 1
        await loop.delay(30_000)
        assert await asyncio.gather(*(masters.look_up() for _ in range(300))) == [2] * 300
        assert await masters.look_up(table="u") == 3

    run(work)


def test_error_of_the_masters_is_shared_too_and_no_longer():
    async def work(loop: SimLoop) -> None:
        masters = Masters(loop)
        masters.error = Unavailable("no master leads")
        found = await asyncio.gather(
            *(masters.look_up() for _ in range(50)), return_exceptions=True
        )
        assert {str(e) for e in found} == {str(masters.error)}
        assert len({*map(id, found), id(masters.error)}) == 51, "each caller raises its own"
        errors = [e for e in found if isinstance(e, Unavailable)]
        depths = {len(traceback.extract_tb(e.__traceback__)) for e in errors}
        assert len(depths) == 1, "a traceback has the frames of one caller only"
        assert [e.__context__ for e in errors] == [None] * 50
        assert masters.asked == 1
        masters.error = None
        await loop.delay(SHARED_US)
        assert await masters.look_up() == 2

    run(work)


def test_caller_with_little_time_neither_waits_longer_nor_fails_the_others():
    async def work(loop: SimLoop) -> None:
        masters = Masters(loop, answer_ms=900)
        first = asyncio.ensure_future(masters.look_up(20))
        await loop.delay(5_000)
        second = asyncio.ensure_future(masters.look_up())
        await loop.delay(100_000)
        began_us = loop.now_us()
        with pytest.raises(TimedOut, match="nyala cluster ksck"):
            await masters.look_up(50)
        assert loop.now_us() - began_us < 60_000
        with pytest.raises(TimedOut):
            await first
        assert await second == 2

    run(work)


def test_next_caller_asks_if_the_one_that_asks_is_cancelled():
    async def work(loop: SimLoop) -> None:
        masters = Masters(loop)
        first = asyncio.ensure_future(masters.look_up())
        second = asyncio.ensure_future(masters.look_up())
        await loop.delay(5_000)
        first.cancel()
        assert await second == 2
        assert first.cancelled()

    run(work)


def test_tables_that_are_not_asked_for_any_more_take_no_memory():
    async def work(loop: SimLoop) -> None:
        masters = Masters(loop)
        for number in range(100):
            await masters.look_up(table=str(number))
        assert len(masters.shared) <= SHARED_US // 10_000 + 1

    run(work)


@asynccontextmanager
async def counted(core: ClientCore) -> AsyncIterator[list[int]]:
    """Yield the times, in virtual microseconds, at which the locations of tablets are asked for."""
    asked: list[int] = []
    look_up = core.masters.look_up

    async def count(method: Any, request: Any, **how: Any) -> Any:
        if method is methods.TABLET_LOCATIONS:
            asked.append(core.env.clock.monotonic_us())
        return await look_up(method, request, **how)

    with mock.patch.object(core.masters, "look_up", count):
        yield asked


USERS: dict[str, Callable[[ClientCore, OpenTable], Awaitable[object]]] = {
    "holds": lambda core, table: core.hold(table, None, 60_000),
    "times of snapshots": lambda core, table: core.reader.time_for(table, ReadSpec(), 1_000),
    "waits of feeds": lambda core, table: wait_for_changes(
        core.env, core.locations, table, 1 << 62, 1_000
    ),
    "reads of a table opened long ago": lambda core, table: core.locations.refresh_old(table),
}


@pytest.mark.parametrize("users", USERS)
@pytest.mark.parametrize("servers", ["up", "down"])
def test_concurrent_users_of_locations_share_look_ups(users, servers):
    @scenario
    async def shared(s: Scenario) -> None:
        if servers == "down":
            for process in s.cluster.tservers:
                process.kill()
        s.table.until_us = 1

        async def work() -> None:
            async with counted(s.core) as asked:
                await asyncio.gather(
                    *(USERS[users](s.core, s.table) for _ in range(8)), return_exceptions=True
                )
            assert asked or (users, servers) == ("waits of feeds", "up")
            pauses = [later - earlier for earlier, later in pairwise(asked)]
            assert all(pause > SHARED_US for pause in pauses), pauses

        await s.on(work)

    shared()
