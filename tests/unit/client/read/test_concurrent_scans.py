"""Scans, and the shared connection, of which several threads make the first use at once."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from nyala.client import connection
from nyala.client.core import ClientOptions
from nyala.client.read.plan import ReadPlan
from nyala.client.read.read_spec import ReadSpec
from nyala.client.scan import Scan
from nyala.common.alteration import RenameColumn, alter
from nyala.env.env import system_env
from nyala.env.loop_thread import LoopThread
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened

ROWS = pa.schema([("k", pa.int64()), ("v", pa.int64())])
TABLETS = ("a", "b")


def rows_at(tablet: str, at: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"k": [TABLETS.index(tablet)], "v": [at]}, schema=ROWS)


async def one_turn() -> None:
    """Let the loop run everything else that is ready."""
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


class Reader:
    """A reader whose clock advances with each requested time; a row's value is the time of its read.

    Args:
        on_read: called before a tablet is read, with its token.
        empty_at: time at which the first tablet has no rows.
    """

    def __init__(
        self, on_read: Callable[[pb.ScanToken], object] = lambda _: None, empty_at: int = 0
    ) -> None:
        self._clock = 100
        self._on_read = on_read
        self._empty_at = empty_at

    async def time_for(self, table: Any, spec: ReadSpec, timeout_ms: int) -> int:
        self._clock += 1
        found = self._clock
        for _ in range(10):
            await one_turn()
        return found

    def tokens_at(self, table: Any, spec: ReadSpec, at: int, timeout_ms: int) -> list[pb.ScanToken]:
        return [pb.ScanToken(tablet_id=t, at=at) for t in TABLETS]

    async def collect_all(
        self, tokens: list[pb.ScanToken], on_header: Any
    ) -> list[list[pa.RecordBatch]]:
        return [[batch async for batch in self.run(t)] for t in tokens]

    async def run(
        self, token: pb.ScanToken, *, on_header: Any = None
    ) -> AsyncIterator[pa.RecordBatch]:
        self._on_read(token)
        if token.tablet_id != TABLETS[0] or token.at != self._empty_at:
            yield rows_at(token.tablet_id, token.at)

    async def probe(self, table: Any, at: int, timeout_ms: int) -> None:
        """Accept every time."""


class Core:
    """Part of the client's core that a scan uses; threads that make a plan wait for each other."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.env: Any = None
        self.options = ClientOptions()
        self.plans: list[ReadPlan] = []
        self._maker = threading.current_thread()
        self._both = threading.Barrier(2)

    def plan(self, table: Any, spec: ReadSpec) -> ReadPlan:
        if threading.current_thread() is not self._maker:
            self._both.wait(30)
        env: Any = system_env(None)  # type: ignore[arg-type]
        locations: Any = None
        reader: Any = self.reader
        self.plans.append(ReadPlan(env, reader, locations, table, spec, 60_000))
        return self.plans[-1]


class OneLoop:
    """A connection on which so many calls begin together.

    Args:
        core: the client's core.
        calls: number of calls.
    """

    def __init__(self, core: Core, calls: int) -> None:
        self.core = core
        self._loop = LoopThread("test")
        self._loop.run(self._make_env())
        self._begun = asyncio.Barrier(calls)

    async def _make_env(self) -> None:
        self.core.env = system_env(None)  # type: ignore[arg-type]

    def run(self, work: Any) -> Any:
        async def with_others() -> Any:
            await self._begun.wait()
            return await work

        return self._loop.run(with_others())

    def iterate(self, items: AsyncIterator[Any]) -> Iterator[Any]:
        return self._loop.iterate(items)

    def close(self) -> None:
        self._loop.close()


def scan_over(made: OneLoop, spec: ReadSpec) -> Scan:
    client: Any = made
    return Scan(client, opened(), spec)


@pytest.mark.parametrize("way", [Scan.to_arrow, lambda scan: pa.table({"v": [scan.at]})])
def test_first_use_by_two_threads_reads_one_snapshot(way):
    read: list[pb.ScanToken] = []
    made = OneLoop(Core(Reader(read.append)), calls=2)
    scan = scan_over(made, ReadSpec())
    try:
        with ThreadPoolExecutor(2) as threads:
            found = [f.result(60) for f in [threads.submit(way, scan) for _ in range(2)]]
    finally:
        made.close()
    times = [set(table.column("v").to_pylist()) for table in found]
    assert times == [{101}, {101}]
    assert len(made.core.plans) == 1
    assert {t.at for t in read} <= {101}, "no run was at a time of its own, and repeated"


@pytest.mark.parametrize("ordered", [False, True])
def test_run_that_another_run_overtakes_is_repeated_at_its_time(ordered):
    """Another thread gets rows of time 500 while this one has read an empty tablet at 101."""

    def overtake(token: pb.ScanToken) -> None:
        if token.tablet_id == TABLETS[1] and token.at == 101:
            assert made.core.plans[0].fix(500)

    made = OneLoop(Core(Reader(overtake, empty_at=101)), calls=1)
    scan = scan_over(made, ReadSpec(ordered=ordered))
    try:
        rows = pa.Table.from_batches(scan.to_batches())
    finally:
        made.close()
    assert rows.to_pydict() == {"k": [0, 1], "v": [500, 500]}
    assert scan.at == 500


def test_whole_read_that_another_run_overtakes_is_repeated_at_its_time():
    def overtake(token: pb.ScanToken) -> None:
        if token.at == 101:
            made.core.plans[0].fix(500)

    made = OneLoop(Core(Reader(overtake)), calls=1)
    try:
        rows = scan_over(made, ReadSpec()).to_arrow()
    finally:
        made.close()
    assert rows.to_pydict() == {"k": [0, 1], "v": [500, 500]}


def test_threads_share_one_connection_made_once(monkeypatch):
    made: list[str] = []
    both = threading.Barrier(2)

    class Connecting:
        def __init__(self, masters: str, options: Any) -> None:
            made.append(masters)
            try:
                both.wait(0.5)  # only a second thread that connects too would arrive
            except threading.BrokenBarrierError:
                return

    monkeypatch.setattr(connection, "Connection", Connecting)
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(connection.shared, "one-cluster:1") for _ in range(2)]
        assert found[0].result(30) is found[1].result(30)
    assert made == ["one-cluster:1"]


def test_one_connection_is_shared_whatever_the_order_of_the_masters(monkeypatch):
    class Connecting:
        def __init__(self, masters: str, options: Any) -> None:
            assert masters == "m2:1,m1:1", "the token's first master is asked first"

    monkeypatch.setattr(connection, "Connection", Connecting)
    assert connection.shared("m2:1,m1:1") is connection.shared("m1:1, m2:1")


def test_scan_that_is_run_again_after_a_rename_returns_rows_as_described():
    table, made = opened(), OneLoop(Core(Reader()), calls=1)
    client: Any = made
    scan = Scan(client, table, ReadSpec(ordered=True))
    try:
        table.schema = alter(table.schema, [RenameColumn("k", "key")])
        for rows in (pa.Table.from_batches(scan.to_batches()), scan.to_arrow()):
            assert rows.schema.names == scan.schema.names == ["k", "v"]
            assert rows.column("k").to_pylist() == [0, 1]
    finally:
        made.close()
