"""`Table.hold` through real servers in virtual time: history stays while it is held, whoever leads."""

from typing import Any

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.client.table import Table
from nyala.common.errors import HistoryGone, InvalidArgument, Unavailable
from nyala.common.ids import TableId
from nyala.common.partition import PartitionSchema
from nyala.common.schema import from_arrow
from nyala.tserver.history_holds import RETURN_MS
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.world.loop import SimLoop, run

SECOND = 1_000_000


class Story:
    """A table of one tablet that forgets after a second, and a client."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop, seed=7)

    async def start(self) -> "Story":
        await self.cluster.start()
        self.core = self.cluster.client(ClientOptions(timeout_ms=20_000))
        options = {"history_max_age_s": "1"}
        self.table = await self.on(self.core.ddl.create_table, "t", SCHEMA, None, 3, options)
        self.group = self.table.tablets[0].id
        await self.loop.delay(RETURN_MS * 1000)
        return self

    async def on(self, work, *args):
        return await self.cluster.run(self.cluster.clients[-1], work, *args)

    async def write(self, value: int) -> int:
        rows = pa.record_batch([pa.array([1]), pa.array([value])], names=["k", "v"])
        written = await self.on(
            lambda: self.core.session.write(
                self.table, pb.UPSERT, rows, all_or_nothing=False, timeout_ms=20_000
            )
        )
        return int(written.timestamp)

    async def overwrite(self) -> int:
        """Write three versions, let the first ones grow old, and flush; return the first one's time."""
        first = await self.write(1)
        await self.write(2)
        await self.write(3)
        await self.loop.delay(3 * SECOND)
        await self.write(4)
        return first

    async def settle(self) -> None:
        """Flush every replica, and let compactions look around."""
        for process in self.cluster.tservers:
            if process.alive:
                await self.cluster.run(process, process.server.host.find(self.group).flush)
        await self.loop.delay(65 * SECOND)  # tablets that sleep are looked at once a minute

    async def read(self, at: int) -> Any:
        async def reading():
            tokens = await self.core.reader.tokens(self.table, ReadSpec(at=at), 20_000)
            found = await self.core.reader.collect_all(tokens)
            return [v for part in found for b in part for v in b.column("v").to_pylist()]

        return await self.on(reading)

    async def statuses(self) -> Any:
        async def asking():
            found = []
            for process in self.cluster.tservers:
                answer = await self.core.env.rpc.call(
                    process.address, methods.LIST_TABLETS, pb.ListTabletsRequest(), timeout_ms=5_000
                )
                found += answer.tablets
            return found

        return await self.on(asking)


def story(fn):
    def wrapped():
        async def main(loop: SimLoop) -> None:
            await fn(await Story(loop).start())

        run(main, max_time_s=900)

    wrapped.__name__ = fn.__name__
    for mark in getattr(fn, "pytestmark", ()):
        wrapped = getattr(pytest.mark, mark.name)(*mark.args)(wrapped)
    return wrapped


@story
@pytest.mark.row("A7")
@pytest.mark.row("A16")
async def test_history_beyond_its_age_goes_and_reading_below_the_horizon_says_so(s):
    first = await s.overwrite()
    assert await s.read(first) == [1]
    await s.settle()
    with pytest.raises(HistoryGone, match="history is not kept"):
        await s.read(first)
    assert await s.read(await s.write(5)) == [5]
    with pytest.raises(HistoryGone, match="too late to hold it"):
        await s.on(s.core.hold, s.table, first, 60_000)
    horizons = [t.horizon for t in await s.statuses()]
    assert min(horizons) > first


@story
@pytest.mark.row("A16")
async def test_what_is_held_stays_through_a_new_leader_and_goes_once_released(s):
    first = await s.write(1)
    holding = await s.on(s.core.hold, s.table, first, 600_000)
    await s.overwrite()
    await s.settle()
    assert await s.read(first) == [1]
    for status in await s.statuses():
        assert [(h.name, h.at) for h in status.holds] == [(holding.name, first)]
        assert 0 < status.holds[0].left_ms <= 600_000
    s.cluster.leader_of(s.group).kill()
    await s.loop.delay(5 * SECOND)
    await s.settle()
    assert await s.read(first) == [1]
    await s.on(holding.release)
    await s.settle()
    with pytest.raises(HistoryGone):
        await s.read(first)


@story
async def test_a_restarted_server_is_told_again_before_it_lets_history_go(s):
    first = await s.write(1)
    await s.on(s.core.hold, s.table, first, 600_000)
    await s.overwrite()
    for process in s.cluster.tservers:
        process.kill()
        process.start()
        await s.loop.delay(3 * SECOND)
    await s.loop.delay(2 * RETURN_MS * 1000)
    await s.settle()
    assert await s.read(first) == [1]


@story
async def test_a_hold_ends_by_itself_when_its_time_to_live_is_over(s):
    first = await s.write(1)
    holding = await s.on(s.core.hold, s.table, first, 12_000)
    await s.overwrite()
    await s.loop.delay(10 * SECOND)
    assert not holding.left_ms()
    await s.settle()
    with pytest.raises(HistoryGone):
        await s.read(first)
    assert [list(t.holds) for t in await s.statuses()] == [[], [], []]


@story
async def test_a_hold_that_no_majority_keeps_is_no_hold(s):
    first = await s.write(1)
    for process in s.cluster.tservers[:2]:
        process.kill()
    with pytest.raises(Unavailable, match="no majority"):
        await s.on(s.core.hold, s.table, first, 60_000)
    await s.loop.delay(70 * SECOND)


def test_a_time_to_live_is_a_number_of_seconds():
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", pa.int64())]), ["k"])
    table = Table(None, OpenTable(TableId("a" * 32), "t", schema, PartitionSchema(), 3, {}))  # type: ignore[arg-type]
    for wrong in (0, -1, True, 1e9, float("nan")):
        with pytest.raises(InvalidArgument, match="ttl"):
            table.hold(ttl=wrong)
