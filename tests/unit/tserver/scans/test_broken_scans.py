"""Scans that find damage or lose their server: the replica fails, another one continues in the same order."""

import asyncio
import functools
import random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache
from nyala.client.read.read_spec import ReadSpec, make_token
from nyala.client.read.token_reader import Reader
from nyala.client.scan_token import ScanToken
from nyala.common.errors import Corrupt, InvalidArgument, NotLeader, Unavailable
from nyala.common.ids import TableId
from nyala.common.keys.encoding import encode_key
from nyala.common.options import Options
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition
from nyala.env.clock import HybridClock, SystemClock
from nyala.replica.memory import MemoryTracker
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from nyala.tserver.scans.open_scans import OpenScans
from nyala.tserver.scans.scan_memory import ScanMemory
from nyala.tserver.scans.scanners import Scanners, bounds_of
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.tablet.support.tablet_support import INT_KEY, Driver, info, numbered

ROWS = 100


class Inline:
    """Tasks without lanes, threads or time."""

    async def run(self, _lane: object, work: Any, *args: Any) -> Any:
        return work(*args)

    async def sleep_ms(self, _duration: int) -> None:
        return None


class Replica:
    """A leader until its replica fails."""

    def __init__(self, driver: Driver) -> None:
        self.driver, self.group = driver, driver.tablet.info.tablet_id
        self.failures: list[BaseException] = []
        self.asked: list[int | None] = []

    async def read_point(self, at: int | None, _timeout_ms: int) -> int:
        if self.failures:
            raise NotLeader("it is FAILED")
        self.asked.append(at)
        return at or self.driver.now

    async def latest_point(self, timeout_ms: int) -> int:
        return await self.read_point(None, timeout_ms)

    def fail(self, why: BaseException) -> None:
        self.failures.append(why)


class Servers:
    """Servers with a copy of one tablet each, and an rpc that cuts their streams after so many messages."""

    def __init__(self, directory: str) -> None:
        env: Any = SimpleNamespace(
            tasks=Inline(), clock=SystemClock(), random=random.Random(1), rpc=self
        )
        self.env = env
        self.replicas: dict[str, Replica] = {}
        self.scanners: dict[str, Scanners] = {}
        self.cuts: dict[str, list[int]] = {}
        self.directory = directory
        for name in ("a", "b", "c"):
            self.add(name)
        masters: Any = SimpleNamespace(
            known=["m"], look_up=self.locate, now_us=env.clock.monotonic_us
        )
        self.reader = Reader(env, masters, TabletCache(masters), HybridClock(SystemClock()))
        self.reader.batch_rows = 10

    async def locate(
        self, _method: object, request: Any, *, max_age_ms: int, timeout_ms: int
    ) -> Any:
        found = pb.TabletLocation(id=request.tablet_ids[0])
        for name in self.replicas:
            found.replicas.add(uuid=name, address=name, leader=name == "a")
        return pb.TabletLocationsResponse(tablets=[found])

    def add(self, name: str) -> None:
        driver = Driver(f"{self.directory}/{name}")
        driver.write(RowOp.INSERT, numbered(0, ROWS))
        driver.flush()
        driver.tablet = Tablet.open(driver.files, driver.directory)
        replica = self.replicas[name] = Replica(driver)
        hosted = SimpleNamespace(replica=replica, tablet=driver.tablet)
        tablets: Any = SimpleNamespace(get=lambda _id: hosted)
        self.scanners[name] = Scanners(
            self.env,
            tablets,
            name,
            Options(),
            ScanMemory(MemoryTracker(Options()), Options()),
            OpenScans(SystemClock(), 10),
        )

    def stream(self, address: str, _method: object, ticket: Any) -> Any:
        token = pb.ScanToken.FromString(ticket.ticket)

        async def messages() -> Any:
            left = self.cuts.get(address, [])
            cut = left.pop(0) if left else -1
            async for data in self.scanners[address].run(token):
                if cut == 0:
                    raise Unavailable(f"{address} has crashed")
                cut -= 1
                yield data

        return messages()

    def token(self, at: int = 10, **more: Any) -> pb.ScanToken:
        opened = OpenTable(TableId("cd" * 16), "t", INT_KEY, PartitionSchema(), 3, {})
        replicas = tuple((n, n) for n in self.replicas)
        place: Any = SimpleNamespace(
            id=info().tablet_id,
            partition=TabletPartition(),
            addresses=lambda: [a for _, a in replicas],
        )
        token = make_token(opened, place, ReadSpec(latest=not at, **more), at)
        token.batch_rows = 10
        token.masters.append("m:1")
        return token

    async def read(self, token: pb.ScanToken) -> list[int]:
        return [k async for b in self.reader.run(token) for k in b.column("k").to_pylist()]


def on_a_loop(test):
    @functools.wraps(test)
    def wrapped(**given):
        asyncio.run(test(**given))

    return wrapped


@pytest.fixture
def servers(tmp_path):
    return Servers(str(tmp_path))


def damage(servers: Servers, name: str) -> None:
    """Change a byte in the middle of a replica's column data before it is read."""
    directory = f"{servers.directory}/{name}"
    [path] = [f for f in servers.replicas[name].driver.files.list(directory) if f.endswith(".dat")]
    with open(f"{directory}/{path}", "r+b") as file:
        file.seek(100)
        byte = file.read(1)
        file.seek(100)
        file.write(bytes([byte[0] ^ 1]))


@on_a_loop
async def test_damaged_replica_fails_and_another_serves_the_rows(servers):
    damage(servers, "a")
    assert await servers.read(servers.token()) == list(range(ROWS))
    [why] = servers.replicas["a"].failures
    assert isinstance(why, Corrupt)
    assert ".dat" in str(why)
    assert not servers.replicas["b"].failures


@pytest.mark.parametrize("kind", ["count", "get"])
@on_a_loop
async def test_read_of_damaged_data_returns_retry_at_another_replica(servers, kind):
    damage(servers, "a")
    token = servers.token()
    if kind == "count":
        token.count_only = True
        token.where.CopyFrom(convert.predicate_to_proto(some_row()))
    else:
        token.keys_ipc = key_message(5)
    with pytest.raises(Unavailable, match=r"FAILED: .*try another one"):
        [d async for d in servers.scanners["a"].run(token)]
    [why] = servers.replicas["a"].failures
    assert isinstance(why, Corrupt)


def some_row():
    from nyala.common.expressions.where import parse

    return parse("k = 7", INT_KEY)


def key_message(key: int) -> bytes:
    from nyala.wire import flight

    return flight.batch_message(pa.record_batch({"k": pa.array([key], pa.int64())}))


@pytest.mark.row("A5")
@on_a_loop
async def test_ordered_scan_resumes_after_last_delivered_key_at_same_snapshot(servers):
    for cuts in ({"a": [4], "b": [1], "c": [3]}, {"a": [1, 2], "b": [1, 1], "c": [2]}):
        servers.cuts = {n: list(c) for n, c in cuts.items()}
        for replica in servers.replicas.values():
            replica.asked.clear()
        assert await servers.read(servers.token(ordered=True)) == list(range(ROWS))
        assert not any(servers.cuts.values())
        assert {at for r in servers.replicas.values() for at in r.asked} == {10}


@on_a_loop
async def test_deadline_of_a_scan_counts_from_its_last_progress(servers):
    now = [0]
    servers.env.clock = SimpleNamespace(monotonic_us=lambda: now[0])
    stream = servers.stream

    def slow(*request: Any) -> Any:
        now[0] += 25_000_000  # of 60 s
        return stream(*request)

    servers.stream = slow
    servers.cuts = {"a": [2, 2], "b": [2], "c": [2]}
    assert await servers.read(servers.token(ordered=True)) == list(range(ROWS))


@on_a_loop
async def test_latest_read_resumes_at_its_original_time(servers):
    servers.cuts = {"a": [3]}
    later = servers.replicas["b"].driver
    later.write(RowOp.UPSERT, [{"k": 99, "a": -1, "s": None}, {"k": 100, "a": -1, "s": None}])
    assert await servers.read(servers.token(at=0, ordered=True)) == list(range(ROWS))
    assert servers.replicas["b"].asked == [10]


@on_a_loop
async def test_limit_counts_rows_delivered_before_resume(servers):
    for cuts in ({"a": [3]}, {"a": [4], "b": [1]}, {"a": [1, 1, 1], "b": [2]}):
        servers.cuts = {n: list(c) for n, c in cuts.items()}
        assert await servers.read(servers.token(ordered=True, limit=25)) == list(range(25))
    servers.cuts = {"a": [3]}  # it ends at the limit, before its end is reported
    assert await servers.read(servers.token(ordered=True, limit=20)) == list(range(20))


@on_a_loop
async def test_unordered_scan_reports_interruption_and_collect_restarts(servers):
    servers.cuts = {"a": [3]}
    with pytest.raises(Unavailable, match="broke after 20 rows"):
        await servers.read(servers.token())
    servers.cuts = {"a": [3], "b": [5]}
    found = await servers.reader.collect(servers.token())
    assert [k for b in found for k in b.column("k").to_pylist()] == list(range(ROWS))


@pytest.mark.row("A6")
@on_a_loop
async def test_scan_token_is_repeatable_in_any_process(servers):
    written = bytes(ScanToken(servers.token(columns=("k", "s"), limit=0)))
    parsed = ScanToken.parse(written)
    assert bytes(parsed) == written
    assert parsed.at == 10
    assert parsed.tablet_id == info().tablet_id
    servers.replicas["a"].driver.write(RowOp.DELETE, [{"k": 5}], ["k"])
    runs = [[b async for b in servers.reader.run(pb.ScanToken.FromString(written))] for _ in "ab"]
    assert runs[0][0].schema.names == ["k", "s"]
    assert [[k for b in run for k in b.column("k").to_pylist()] for run in runs] == [
        list(range(ROWS)), list(range(ROWS)),
    ]  # fmt: skip
    for wrong in (b"", b"\xff\xff", b"no token"):
        with pytest.raises(InvalidArgument, match="no scan token"):
            ScanToken.parse(wrong)


def piece(servers: Servers, lower: int, upper: int, **more: Any) -> pb.ScanToken:
    """A token for the keys in [lower, upper)."""
    token = servers.token(**more)
    ends = [encode_key([pa.scalar(k, pa.int64())], [pa.int64()]) for k in (lower, upper)]
    token.key_lower, token.key_upper = ends
    return token


@pytest.mark.row("A6")
@on_a_loop
async def test_interrupted_split_resumes_within_its_bounds(servers):
    for cuts in ({}, {"a": [1]}, {"a": [4], "b": [1], "c": [3]}):
        servers.cuts = {n: list(c) for n, c in cuts.items()}
        assert await servers.read(piece(servers, 20, 75, ordered=True)) == list(range(20, 75))
        assert not any(servers.cuts.values())
        servers.cuts = {n: list(c) for n, c in cuts.items()}
        found = await servers.reader.collect(piece(servers, 20, 75))
        assert [k for b in found for k in b.column("k").to_pylist()] == list(range(20, 75))
    servers.cuts = {"a": [3]}
    token = piece(servers, 20, 75, ordered=True, limit=25)
    assert await servers.read(token) == list(range(20, 45))


@on_a_loop
async def test_invalid_split_bounds_are_refused(servers):
    backwards, feed = piece(servers, 7, 7), piece(servers, 1, 7, changes=True)
    look_up = piece(servers, 1, 7)
    look_up.keys_ipc = key_message(5)
    for token, why in ((backwards, "not above it"), (feed, "scans and"), (look_up, "scans and")):
        with pytest.raises(InvalidArgument, match=why):
            [d async for d in servers.scanners["a"].run(token)]


@pytest.mark.parametrize(("after", "lower"), [(b"a", b"m"), (b"n", b"n\0")])
def test_rest_of_a_piece_begins_within_it(after, lower):
    token = pb.ScanToken(key_lower=b"m", key_upper=b"z", resume_after=after)
    assert bounds_of(token).lower == lower
