"""Coordinators of an ensemble: take-over after kill -9, operations a second, replay, lag of a follower."""

import asyncio
import signal
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.report import Report
from nyala.client.connection import Connection
from nyala.client.core import ClientOptions
from nyala.client.journal.core import JournalCore
from nyala.client.journal.coroutines import JournalCoroutines
from nyala.common.errors import NyalaError
from nyala.ram.calls import EnsembleClient
from nyala.ram.coordinator import leader_address
from nyala.ram.ids import ServerId, equal_ranges
from nyala.ram.operations.kinds import operations
from nyala.ram.operations.record_operation import OperationContext
from nyala.ram.state import CoordinatorState
from nyala.ram.tablet_map import mapping
from nyala.ram.term import CoordinatorTerm, call
from nyala.recipes.operations.log import OperationLog
from nyala.testing import MiniCluster, layout, processes, ram_ensemble
from nyala.testing.forkserver import ForkServer
from nyala.testing.layout import Layout
from nyala.wire import methods
from nyala.wire.proto import ram_pb2 as pb

TABLES = (1, 1_000, 10_000)
KILLS = 3
TIMEOUT_S, BACK_OFF_S, REST_S = 3.0, 4.5, 0.5
"""Times of a coordinator as `nyala ram coordinator run` has them, and the rest of a take-over."""
CALLERS = 16
RECORDS = 100_000
RECORDS_A_STEP = 50
LAGS = 50
CALL_MS = 60_000


class Ensemble:
    """Processes of an ensemble, and one connection to their journal.

    Args:
        stack: closes it.
        cluster: has the journal.
    """

    def __init__(self, stack: ExitStack, cluster: MiniCluster) -> None:
        found = layout.load(cluster.dir)
        assert found is not None
        self._parent = stack.enter_context(ForkServer(bound=True))
        self.layout: Layout = ram_ensemble.plan(found, 2, 3)
        stack.callback(ram_ensemble.stop, self.layout)
        ram_ensemble.start(self.layout, self._parent, bound=True)
        self.connection = Connection(cluster.masters, ClientOptions(timeout_ms=CALL_MS))
        stack.callback(self.connection.close)
        self.journal = self.open(ram_ensemble.JOURNAL)
        self._client = EnsembleClient(self.connection.core.env, self._leader, retry_ms=5)
        self.made = 0

    def open(self, name: str) -> JournalCoroutines:
        """Open a journal of the cluster."""
        core = JournalCore(self.connection.core)
        return JournalCoroutines(core, self.connection.run(core.open(name)))

    def _leader(self) -> Awaitable[str]:
        return leader_address(self.journal, ram_ensemble.ENSEMBLE)

    async def create(self) -> str:
        """Create a table of three tablets; return its name."""
        self.made += 1
        name = f"t{self.made}"
        operation = pb.OperationId(client="bench", sequence=self.made)
        request = pb.CreateTableRequest(name=name, server_span=3, operation=operation)
        await self._client.call(methods.RAM_CREATE_TABLE, request, CALL_MS)
        return name

    def fill(self, tables: int) -> None:
        """Create tables until the ensemble has this number."""
        self.connection.run(self._concurrently(max(0, tables - self.made), self.create))

    @staticmethod
    async def _concurrently(count: int, work: Callable[[], Awaitable[object]]) -> None:
        left = iter(range(count))

        async def caller() -> None:
            for _ in left:
                await work()

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    def take_over_s(self) -> float:
        """Kill the leader with kill -9; return the time until another one answers."""
        address = self.connection.run(self._leader())
        leader = next(s for s in self.layout.servers if s.address == address)
        before = self._epoch()
        began = time.perf_counter()
        processes.end(leader, signal.SIGKILL)
        while self._epoch() == before:
            pass
        taken = time.perf_counter() - began
        self._parent.fork([ram_ensemble.job(self.layout, leader, bound=True)])
        ram_ensemble.wait_up(self.layout)
        return taken

    def _epoch(self) -> int:
        request = pb.ServerListRequest()
        found = self.connection.run(self._client.call(methods.RAM_SERVER_LIST, request, CALL_MS))
        epoch: int = found.epoch
        return epoch


def run(quick: bool = False) -> Report:
    """Run the benchmark."""
    report = Report("coordinator", "2 coordinators, 3 servers, journal of 3 replicas, synced")
    with ExitStack() as stack:
        ensemble = Ensemble(stack, stack.enter_context(MiniCluster()))
        for tables in TABLES[:2] if quick else TABLES:
            _creates(report, ensemble, tables)
            _take_overs(report, ensemble, tables, 1 if quick else KILLS)
        _follower(report, ensemble)
        _replay(report, ensemble, RECORDS // 10 if quick else RECORDS)
    return report


def _creates(report: Report, ensemble: Ensemble, tables: int) -> None:
    """Add the rate of creates up to a number of tables."""
    count, began = tables - ensemble.made, time.perf_counter()
    ensemble.fill(tables)
    if count > CALLERS:
        rate = count / (time.perf_counter() - began)
        report.add(f"creates, {CALLERS} callers, up to {tables:,} tables", rate, "operations/s")


def _take_overs(report: Report, ensemble: Ensemble, tables: int, kills: int) -> None:
    """Add the time to the next leader."""
    taken = [ensemble.take_over_s() for _ in range(kills)]
    times = ", ".join(f"{t:.1f}" for t in sorted(taken))
    report.add(
        f"take-over after kill -9, {tables:,} tables, longest of {kills}", max(taken), "s", times,
        at_most=TIMEOUT_S + BACK_OFF_S + REST_S,
    )  # fmt: skip


def _follower(report: Report, ensemble: Ensemble) -> None:
    """Add the time from the answer to a create until a follower has the table."""

    async def measure() -> list[float]:
        follower = CoordinatorTerm(
            ensemble.journal, ram_ensemble.ENSEMBLE, 1_000, lambda name: None
        )
        found = []
        try:
            for number in range(LAGS + 1):
                name = await ensemble.create()
                began = time.perf_counter()
                while follower.state.tablets.by_name(name) is None:
                    await asyncio.sleep(0.001)
                    if time.perf_counter() - began > CALL_MS / 1000:
                        raise NyalaError("the follower does not get the record")
                if number:  # the first waits for the replay of all others
                    found.append(1000 * (time.perf_counter() - began))
        finally:
            follower.close()
        return found

    lags = sorted(ensemble.connection.run(measure()))
    report.add("lag of a follower, median", statistics.median(lags), "ms")
    report.add("lag of a follower, p99", lags[int(len(lags) * 0.99)], "ms")


def _replay(report: Report, ensemble: Ensemble, records: int) -> None:
    """Add the time in which a new coordinator replays a log of its own with many tables."""

    async def append(journal: JournalCoroutines) -> None:
        for first in range(0, records, RECORDS_A_STEP):
            step = journal.builder()
            for number in range(first + 1, first + 1 + RECORDS_A_STEP):
                step.append("replayed", _alive(number))
            await journal.step(*step.parts)

    async def replay(journal: JournalCoroutines) -> Any:
        state = CoordinatorState()
        kinds = operations(OperationContext(state, None))  # type: ignore[arg-type]
        began = time.perf_counter()
        await OperationLog(journal, "replayed", kinds, state.retract, call).catch_up()
        assert len(state.tablets.tables) == records
        return time.perf_counter() - began

    journal = ensemble.open(ram_ensemble.JOURNAL)
    ensemble.connection.run(append(journal))
    taken = ensemble.connection.run(replay(journal))
    report.add(f"replay of {records:,} records", taken, "s", f"{records / taken:,.0f} records/s")


def _alive(number: int) -> bytes:
    """Return the entry of a table of three tablets."""
    pieces = [mapping(a, b, ServerId(n + 1, n + 1)) for n, (a, b) in enumerate(equal_ranges(3))]
    table = pb.Table(id=number, name=f"t{number}", server_span=3, tablets=pieces)
    return b"done create_table " + pb.Record(alive_table=table).SerializeToString()
