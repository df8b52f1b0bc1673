"""Slices of a feed: schemas of masters that lag, drops under way, holds that another process continues."""

import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import TabletCache
from nyala.client.feed.slices import FeedSlices
from nyala.client.hold import Holding
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import SchemaMismatch, Unavailable
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks


class Servers:
    """Tablet server `a` answers each hold, `b` none."""

    def __init__(self) -> None:
        self.held: list[pb.HoldHistoryRequest] = []

    async def call(self, address: str, _method: object, request: Any, *, timeout_ms: int) -> Any:
        if address == "b":
            raise Unavailable("no answer from b")
        self.held.append(request)
        answer = pb.HoldHistoryResponse()
        for tablet_id in request.tablet_ids:
            answer.results.add(tablet_id=tablet_id)
        return answer


def column(number: int, name: str) -> Any:
    return SimpleNamespace(id=number, name=name, type=pa.int64())


def schema(version: int, *names: str) -> Any:
    return SimpleNamespace(version=version, columns=[column(n, c) for n, c in enumerate(names)])


def slices(env: Env, masters_know: list[Any], tablets_have: int) -> FeedSlices:
    """Return slices of a table whose masters answer with these schemas in turn; a range is being dropped."""
    table = SimpleNamespace(
        id="i", name="t", schema=schema(1, "k"), dropped=[SimpleNamespace(dropped_at=0)]
    )

    async def collect(on_header: Any) -> list[Any]:
        on_header(pb.ScanHeader(tablet_id="a", schema_version=tablets_have, through=100))
        return []

    class Locations(TabletCache):
        async def open(self, name: str, timeout_ms: int, *, table_id: str = "") -> Any:
            return SimpleNamespace(schema=masters_know.pop(0))

        async def refresh(
            self, table: Any, timeout_ms: int = 0, *, by_leader: bool = False
        ) -> None:
            table.dropped = [SimpleNamespace(dropped_at=50)]

    core: Any = SimpleNamespace(
        env=env,
        options=SimpleNamespace(timeout_ms=5_000),
        locations=Locations(None),  # type: ignore[arg-type]
        plan=lambda _table, _spec: SimpleNamespace(collect=collect),
    )
    return FeedSlices(core, table, ReadSpec(changes=True))  # type: ignore[arg-type]


def with_env(scenario: Any) -> None:
    async def main(loop: SimLoop) -> None:
        rng = random.Random(1)
        servers = Servers()
        env = Env(SimClock(loop), rng, SystemFiles(), SimTasks(loop, rng), servers)  # type: ignore[arg-type]
        await scenario(env, servers, loop)

    run(main, max_time_s=60)


def test_alteration_is_noticed_if_a_master_that_lags_answers_first():
    async def scenario(env, servers, loop):
        masters = [schema(1, "k"), schema(2, "k", "w")]
        with pytest.raises(SchemaMismatch, match="new: w"):
            await slices(env, masters, 2).times(10, 100, 1)

    with_env(scenario)


def test_time_of_a_drop_that_was_under_way_is_looked_up():
    async def scenario(env, servers, loop):
        assert await slices(env, [], 1).drops(10) == [50]

    with_env(scenario)


@pytest.mark.parametrize("lasting", ["", "spark-x"])
def test_hold_that_cannot_begin_is_released_unless_another_process_may_have_begun_it(lasting):
    async def scenario(env, servers, loop):
        async def refresh_shared(_table: object, _timeout_ms: int) -> None: ...

        tablets = [
            SimpleNamespace(id=i, replicas=[(i, i)], majority_of=lambda i=i: [i]) for i in "ab"
        ]
        table: Any = SimpleNamespace(name="t", with_rows=lambda _at: tablets)
        locations: Any = SimpleNamespace(refresh_shared=refresh_shared)
        holding = Holding(env, locations, table, 7, 3_600_000, lasting=lasting)
        with pytest.raises(Unavailable):
            await holding.begin(50)
        await loop.delay(1_000_000)
        assert servers.held[0].ttl_ms > 0
        assert (servers.held[-1].ttl_ms == 0) == (not lasting)

    with_env(scenario)
