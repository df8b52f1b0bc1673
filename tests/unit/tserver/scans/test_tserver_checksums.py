"""Checksum of one replica at a time: at the leader immediately, at the others once they have reached it."""

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from nyala.common.errors import Corrupt, InvalidArgument, NotLeader, TimedOut, Unavailable
from nyala.common.hybrid_time import from_micros, to_micros
from nyala.common.options import Options
from nyala.env.clock import SystemClock
from nyala.env.files import SystemFiles
from nyala.machines import registry
from nyala.machines.kind import ContentSum
from nyala.replica.memory import MemoryTracker
from nyala.replica.status import State
from nyala.replica.witness import Witness
from nyala.tserver.checksums import Checksums
from nyala.tserver.scans.open_scans import OpenScans
from nyala.tserver.scans.scan_memory import ScanMemory
from nyala.tserver.scans.scanners import Scanners
from nyala.wire.proto import nyala_pb2
from nyala.wire.proto import reads_pb2 as pb
from tests.unit.machines.support.kinds import KINDS, KindDriver, removing


async def turn() -> None:
    """Let the loop run other tasks."""
    done = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(done.set_result, None)
    await done


class Tasks:
    """Lanes inline; each pause advances the follower's closed time."""

    def __init__(self) -> None:
        self.pauses = 0
        self.pause: Any = lambda: None

    async def run(self, _lane: object, work: Any, *args: Any) -> Any:
        await turn()
        return work(*args)

    async def sleep_ms(self, _duration: float) -> None:
        self.pauses += 1
        await turn()
        self.pause()


class Clock:
    """A clock at 1 s that accepts times up to 60 s ahead."""

    limit_us = 60_000_000

    def ahead_us(self, stamp: int) -> int:
        return to_micros(stamp) - 1_000_000

    def peek(self) -> int:
        return from_micros(1_000_000)


class Replica:
    def __init__(self, driver: KindDriver, leads: bool) -> None:
        self.group, self.state, self.machine = "x", State.RUNNING, driver.machine
        self.leads, self.closed, self.now = leads, 0, driver.now
        self.failures: list[BaseException] = []
        self.context = SimpleNamespace(clock=Clock())

    async def read_point(self, at: int | None, _timeout_ms: int) -> int:
        if not self.leads:
            raise NotLeader("another one leads")
        return at or self.now

    async def latest_point(self, timeout_ms: int) -> int:
        return await self.read_point(None, timeout_ms)

    async def stale_point(self, _age: int, _timeout_ms: int, *, min_time: int) -> tuple[int, int]:
        if self.leads:
            return self.now, 0
        if self.closed < min_time:
            raise NotLeader("too old")
        return self.closed, 5

    def fail(self, why: BaseException) -> None:
        self.failures.append(why)


class Server:
    def __init__(self, kind: Any, directory: str, *, leads: bool, items: int = 100) -> None:
        self.driver = KindDriver(kind, directory, items)
        self.replica = Replica(self.driver, leads)
        self.tasks = Tasks()
        hosted = SimpleNamespace(replica=self.replica, tablet=self.driver.machine)
        tablets: Any = SimpleNamespace(
            get=lambda _id: hosted,
            hosted=lambda _id: SimpleNamespace(replica=self.replica, machine=self.driver.machine),
            host=SimpleNamespace(find=lambda _id: self.replica),
        )
        env: Any = SimpleNamespace(tasks=self.tasks)
        options = Options(scan_batch_rows=7)
        self.service = Checksums(env, tablets, options)
        memory = ScanMemory(MemoryTracker(options), options)
        self.scanners = Scanners(
            env, tablets, "u" * 32, options, memory, OpenScans(SystemClock(), 10)
        )

    async def ask(self, at: int = 0, timeout_ms: int = 10_000) -> pb.ChecksumResponse:
        request = pb.ChecksumRequest(tablet_id="x", at=at, timeout_ms=timeout_ms)
        return await self.service.checksum(request)

    async def scan(self, **token: Any) -> int:
        """Return the number of messages of a scan of a table."""
        version = self.driver.machine.view().schema.version
        asked = nyala_pb2.ScanToken(
            tablet_id="x", all_columns=True, schema_version=version, **token
        )
        return len([data async for data in self.scanners.run(asked)])


@KINDS
def test_replicas_with_different_layout_have_equal_checksums_unless_rows_differ(kind, tmp_path):
    one, two = (Server(kind, f"{tmp_path}/{n}", leads=n == "a") for n in "ab")
    two.driver.flush()
    less = Server(kind, f"{tmp_path}/c", leads=True, items=99)

    async def scenario():
        first = await one.ask()
        two.replica.closed = first.at
        second = await two.ask(first.at)
        assert (first.rows, second.rows) == (100, 100)
        assert first == second
        assert (await less.ask()).checksum != first.checksum
        one.driver.apply(removing(kind, 5))
        again = await one.ask(first.at)
        assert again == first, "the checksum at a time is repeatable"
        one.replica.now = one.driver.now
        assert (await one.ask()).rows == 99

    asyncio.run(scenario())


@KINDS
def test_follower_checksum_waits_for_its_time(kind, tmp_path):
    server = Server(kind, str(tmp_path), leads=False)

    def learn():
        server.replica.closed += 1

    async def scenario():
        server.tasks.pause = learn
        at = server.driver.now
        assert (await server.ask(at)).rows == 100
        assert server.tasks.pauses == at
        with pytest.raises(NotLeader):
            await server.ask()

    asyncio.run(scenario())


@pytest.mark.parametrize("leads", [True, False])
@KINDS
def test_checksum_of_unreached_time_times_out(kind, tmp_path, leads):
    server = Server(kind, str(tmp_path), leads=leads)

    async def scenario():
        with pytest.raises(TimedOut, match="not computed in 10 ms"):
            await server.ask(server.driver.now + 1000, timeout_ms=10)

    asyncio.run(scenario())


@pytest.mark.parametrize("leads", [True, False])
@KINDS
def test_checksum_of_time_far_in_the_future_is_refused(kind, tmp_path, leads):
    server = Server(kind, str(tmp_path), leads=leads)
    ahead = Clock.limit_us + 1_000_000
    with pytest.raises(InvalidArgument, match=r"61\.0 s ahead .* clock_max_ahead_ms \(60000\)"):
        asyncio.run(server.ask(from_micros(ahead + 1_000_000)))
    assert not server.tasks.pauses
    with pytest.raises(TimedOut):  # it waits for a time within the limit
        asyncio.run(server.ask(from_micros(ahead), timeout_ms=10))


@KINDS
def test_witness_refuses_checksum_as_witness(kind, tmp_path):
    server = Server(kind, str(tmp_path), leads=False)
    server.replica.machine = Witness.__new__(Witness)
    answer = asyncio.run(server.ask())
    assert answer.witness
    assert not answer.at


@KINDS
def test_checksum_of_damaged_replica_fails_the_replica(kind, tmp_path, monkeypatch):
    server = Server(kind, str(tmp_path), leads=True)

    def parts() -> Iterator[tuple[int, int]]:
        yield 1, 1
        raise Corrupt("a block is damaged")

    monkeypatch.setattr(type(kind), "checksum", lambda *_: ContentSum(0, parts()))
    with pytest.raises(Unavailable, match="FAILED"):
        asyncio.run(server.ask())
    assert len(server.replica.failures) == 1


def test_checksum_fails_on_unreadable_pages(tmp_path, monkeypatch):
    """They read as zeros: missing or wrong rows without an error from the file. Journals are in memory."""
    server = Server(registry.TABLE, str(tmp_path), leads=True)
    server.driver.flush()
    nothing = {"key_lower": b"\xff" * 16}
    assert asyncio.run(server.scan()) > 1
    assert asyncio.run(server.scan(**nothing)) == 1, "the pages have no row"
    monkeypatch.setattr(SystemFiles, "intact", False)
    monkeypatch.setattr(SystemFiles, "unreadable_offset", lambda _self, _mapped: 4096)
    with pytest.raises(Unavailable, match="FAILED"):
        asyncio.run(server.ask())
    assert len(server.replica.failures) == 1
    for where in ({}, nothing):
        with pytest.raises(Unavailable, match="FAILED"):
            asyncio.run(server.scan(**where))
