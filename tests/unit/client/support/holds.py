"""A table with short history for the tests of holds."""

from typing import Any

import pyarrow as pa
import pytest

from nyala.client.core import ClientOptions
from nyala.client.read.read_spec import ReadSpec
from nyala.tserver.history_holds import RENEWAL_GRACE_MS
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.world.loop import SimLoop, run

SECOND = 1_000_000


class Scenario:
    """A table of one tablet with a history of one second, and a client."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop, seed=7, masters=1)

    async def start(self) -> "Scenario":
        await self.cluster.start()
        self.core = self.cluster.client(ClientOptions(timeout_ms=20_000))
        options = {"history_max_age_s": "1"}
        self.table = await self.on(self.core.ddl.create_table, "t", SCHEMA, None, 3, options)
        self.group = self.table.tablets[0].id
        await self.loop.delay(RENEWAL_GRACE_MS * 1000)
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
        """Flush every replica, and let compactions run."""
        for process in self.cluster.tservers:
            if process.alive:
                await self.cluster.run(process, process.server.host.find(self.group).flush)
        await self.loop.delay(65 * SECOND)  # quiescent tablets are checked once a minute

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


def scenario(fn):
    def wrapped():
        async def main(loop: SimLoop) -> None:
            await fn(await Scenario(loop).start())

        run(main, max_time_s=900)

    wrapped.__name__ = fn.__name__
    for mark in getattr(fn, "pytestmark", ()):
        wrapped = getattr(pytest.mark, mark.name)(*mark.args)(wrapped)
    return wrapped
