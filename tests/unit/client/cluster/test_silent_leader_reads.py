"""A server that answers no look-up: the look-up goes to the replica that leads by then. In virtual time."""

import asyncio
import random
from typing import Any, cast

import pyarrow as pa
import pytest

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache, TabletLocation
from nyala.client.read.get_streams import TRY_TIMEOUT_MS
from nyala.client.read.point_reads import PointGetter
from nyala.common.errors import Unavailable
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition
from nyala.common.schema import from_arrow
from nyala.common.values.plain_rows import encode_rows
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks

A, B = "127.0.0.1:1", "127.0.0.1:2"
KEYS = pa.record_batch({"k": [1]})
SCHEMA = from_arrow(pa.schema([("k", pa.int64())]), ["k"])


class Stream:
    """Stream to A, which answers each request after some time.

    Attributes:
        abandoned: whether the client has cancelled it.
    """

    def __init__(self, loop: SimLoop, on_answer: Any, a_ms: int) -> None:
        self._loop, self._on_answer, self._a_ms = loop, on_answer, a_ms
        self.requests = 0
        self.abandoned = False

    def send(self, request: reads_pb2.GetRequest) -> None:
        self.requests += 1
        absent = reads_pb2.GetAnswer(rows=encode_rows([None]))
        answer = reads_pb2.GetResponse(
            request=request.request, answers=[absent] * len(request.parts)
        )
        self._loop.call_later(self._a_ms / 1000, self._on_answer, answer)

    def abandon(self) -> None:
        self.abandoned = True


class Cluster:
    """A leads a tablet until B is elected; the masters know, and answer after 10 ms, at first with an error.

    Attributes:
        asked: number of look-ups at the masters.
        scanned: leader of each scan, with its time in virtual milliseconds.
        streams: that were opened.
    """

    def __init__(self, loop: SimLoop, a_ms: int, elected_ms: int) -> None:
        self._loop, self._a_ms, self._elected_ms = loop, a_ms, elected_ms
        self.asked = 0
        self.scanned: list[tuple[str | None, int]] = []
        self.streams: list[Stream] = []

    def now_us(self) -> int:
        return self._loop.now_us()

    def request_stream(self, address: str, _method: object, on_answer: Any) -> Stream:
        assert address == A
        self.streams.append(Stream(self._loop, on_answer, self._a_ms))
        return self.streams[-1]

    async def look_up(self, *_: object, **more: object) -> pb.TabletLocationsResponse:
        self.asked += 1
        await self._loop.delay(10_000)
        if self.asked == 1:
            raise Unavailable("no master leads")
        answer = pb.TabletLocationsResponse()
        found = answer.tablets.add(id="t", state="RUNNING")
        leader = A if self._loop.now_us() < self._elected_ms * 1000 else B
        for address in (A, B):
            found.replicas.add(uuid=address, address=address, leader=address == leader)
        return answer

    def token(self, _table: object, tablet: TabletLocation, *_: object) -> pb.ScanToken:
        self.scanned.append((tablet.leader, self._loop.now_us() // 1000))
        return pb.ScanToken()

    async def collect(self, _: pb.ScanToken) -> list[pa.RecordBatch]:
        return [pa.record_batch({"_row": [0], "k": [1]})]


class Lookups:
    """Look-ups of one client."""

    def __init__(self, loop: SimLoop, a_ms: int, elected_ms: int) -> None:
        self.loop = loop
        self.cluster = cast("Any", Cluster(loop, a_ms, elected_ms))
        tasks = SimTasks(loop, random.Random(2))
        env = Env(SimClock(loop), random.Random(1), SystemFiles(), tasks, self.cluster)
        cache = TabletCache(self.cluster)
        self.getter = PointGetter(env, cache, HybridClock(env.clock), self.cluster)
        self.table = OpenTable(TableId("x"), "x", SCHEMA, PartitionSchema(()), 2, {})
        replicas = tuple((ServerUuid(a), a) for a in (A, B))
        self.tablet = TabletLocation(TabletId("t"), TabletPartition(), replicas, A)

    async def get(self, timeout_ms: int = 20_000) -> None:
        await self.getter.get(self.table, self.tablet, [b"1"], lambda: KEYS, None, timeout_ms)


def look_up(number: int, *, a_ms: int, elected_ms: int) -> tuple[Cluster, int]:
    """Look up a key; return the cluster, and the end in virtual milliseconds.

    Args:
        number: number of look-ups at once.
        a_ms: time in which A answers.
        elected_ms: when the masters name B instead of A.
    """

    async def work(loop: SimLoop) -> tuple[Cluster, int]:
        lookups = Lookups(loop, a_ms, elected_ms)
        await asyncio.gather(*(lookups.get() for _ in range(number)))
        return lookups.cluster, loop.now_us() // 1000

    return run(work)


def test_lookup_at_a_server_that_is_stopped_goes_to_the_new_leader():
    cluster, end_ms = look_up(1, a_ms=60_000, elected_ms=900)
    assert [leader for leader, _ in cluster.scanned] == [B]
    assert 900 <= end_ms < 1_300


def test_slow_lookup_at_the_leader_is_not_sent_again():
    cluster, end_ms = look_up(1, a_ms=3_000, elected_ms=60_000)
    assert (cluster.scanned, end_ms) == ([], 3_000)
    assert cluster.streams[0].requests == 1
    assert cluster.asked > 3


def test_masters_are_asked_once_for_all_lookups_at_a_silent_server():
    cluster, end_ms = look_up(800, a_ms=60_000, elected_ms=900)
    assert [leader for leader, _ in cluster.scanned] == [B] * 800
    assert cluster.streams[0].requests == 2, "the other callers waited in the queue"
    assert end_ms < 1_300
    assert cluster.asked < 5


@pytest.mark.parametrize("a_ms", [0, 400])
def test_lookup_that_is_answered_asks_no_master(a_ms):
    cluster, _ = look_up(1, a_ms=a_ms, elected_ms=0)
    assert (cluster.scanned, cluster.asked) == ([], 0)


def test_lookup_at_a_silent_server_that_no_other_replica_replaces_ends_after_the_time_of_a_try():
    cluster, end_ms = look_up(1, a_ms=60_000, elected_ms=60_000)
    assert TRY_TIMEOUT_MS <= end_ms < TRY_TIMEOUT_MS + 100
    assert cluster.streams[0].abandoned


def test_server_that_resumes_is_used_again_and_the_masters_are_asked_no_more():
    async def work(loop: SimLoop) -> None:
        lookups = Lookups(loop, 2_000, 900)
        await asyncio.gather(*(lookups.get() for _ in range(600)))
        asked = lookups.cluster.asked
        await loop.delay(2_000_000 - loop.now_us() + 1000)
        lookups.tablet.leader = A
        before = lookups.cluster.asked
        assert before - asked < 6
        getting = asyncio.ensure_future(lookups.get())
        await loop.delay(400_000)
        assert lookups.cluster.asked == before
        await getting
        [stream] = lookups.cluster.streams
        assert stream.requests == 3, "look-ups of the queue that were complete are not sent"

    run(work)
