"""Snapshot time of a read plan that is repeated because ranges were added: the same, or a later one."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.read.plan import ReadPlan
from nyala.client.read.read_spec import ReadSpec
from nyala.common.errors import HistoryGone, RangesChanged
from nyala.env.env import system_env
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened


class Servers:
    """A reader and a table's ranges; the first runs of tokens are refused, and time advances."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.clock = 100
        self.refreshed = 0
        self.ran_at: list[int] = []

    async def time_for(self, table: Any, spec: ReadSpec, timeout_ms: int) -> int:
        self.clock += 1
        return self.clock

    def tokens_at(self, table: Any, spec: ReadSpec, at: int, timeout_ms: int) -> list[pb.ScanToken]:
        return [pb.ScanToken(at=at)]

    async def collect_all(
        self, tokens: list[pb.ScanToken], on_batch: Any
    ) -> list[list[pa.RecordBatch]]:
        self.ran_at.append(tokens[0].at)
        self._refuse()
        return [[]]

    async def probe(self, table: Any, at: int, timeout_ms: int) -> None:
        self.ran_at.append(at)
        self._refuse()

    async def refresh(self, table: Any, timeout_ms: int, *, by_leader: bool) -> None:
        assert by_leader
        self.refreshed += 1

    def _refuse(self) -> None:
        if len(self.ran_at) <= self.refusals:
            raise RangesChanged("newer ranges")


def times(work: Callable[[ReadPlan], Awaitable[object]], refusals: int, **spec: Any) -> list[int]:
    """Return the times of each run of a plan."""
    servers = Servers(refusals)

    async def scenario() -> None:
        env = system_env(None)  # type: ignore[arg-type]
        plan = ReadPlan(env, servers, servers, opened(), ReadSpec(**spec), 60_000)  # type: ignore[arg-type]
        try:
            await work(plan)
        finally:
            await env.tasks.close()
        assert servers.refreshed == refusals
        assert plan.at == servers.ran_at[-1]
        assert plan.is_fixed

    asyncio.run(scenario())
    return servers.ran_at


@pytest.mark.parametrize("way", [ReadPlan.collect, ReadPlan.verified])
def test_snapshot_time_unused_by_reads_is_renewed_with_partitioning(way):
    """A write to a range added since the plan is acknowledged before the repeated plan."""
    assert times(way, 2) == [101, 102, 103]


@pytest.mark.parametrize("way", [ReadPlan.collect, ReadPlan.verified])
def test_requested_snapshot_time_is_kept(way):
    assert times(way, 2, at=55) == [55, 55, 55]


def test_snapshot_time_already_used_by_reads_is_kept():
    async def twice(plan: ReadPlan) -> None:
        await plan.collect()
        plan.planned = None  # the ranges were looked up again for another run
        await plan.collect()

    assert times(twice, 1) == [101, 102, 102]


def test_error_of_a_time_without_history_is_left_to_the_tablets():
    class Gone(Servers):
        tokens: list[pb.ScanToken] = []

        def tokens_at(self, *_: Any) -> list[pb.ScanToken]:
            return self.tokens

        async def collect_all(self, tokens: list[pb.ScanToken], on_batch: Any) -> Any:
            return [[] for _ in tokens]

        async def probe(self, table: Any, at: int, timeout_ms: int) -> None:
            raise HistoryGone("that time lies below the history that is kept")

    async def scenario() -> None:
        env, servers = system_env(None), Gone(0)  # type: ignore[arg-type]
        plan = ReadPlan(env, servers, servers, opened(), ReadSpec(at=5), 60_000)  # type: ignore[arg-type]
        assert await plan.collect() == [], "no range matches: there are no rows at any time"
        servers.tokens, plan.planned = [pb.ScanToken(at=5)], None
        assert await plan.verified() == servers.tokens
        await env.tasks.close()

    asyncio.run(scenario())
