"""A server that answers no write: the write goes to the replica that leads by then."""

import asyncio
import random
from typing import Any, cast

import pyarrow as pa
import pytest

from nyala.client.cluster.leader_watch import LeaderWatch
from nyala.client.cluster.tablet_cache import OpenTable, TabletCache, TabletLocation
from nyala.client.deadline import Attempts
from nyala.client.write.delivery import Delivery
from nyala.common.errors import NyalaError, OutcomeUnknown, Rejected, Unavailable
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition
from nyala.common.schema import from_arrow
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.files import SystemFiles
from nyala.wire.proto import nyala_pb2 as pb
from tests.sim.world.loop import SimLoop, run
from tests.sim.world.tasks import SimClock, SimTasks

A, B = "127.0.0.1:1", "127.0.0.1:2"
ROWS = pa.record_batch({"k": [1]})
SCHEMA = from_arrow(pa.schema([("k", pa.int64())]), ["k"])


def location(leader: str | None) -> TabletLocation:
    replicas = tuple((ServerUuid(a), a) for a in (A, B))
    return TabletLocation(TabletId("t"), TabletPartition(), replicas, leader)


class OneStopped:
    """Streams to two servers, of which A answers after `a_ms`, and B at once, with an error if there is one.

    Attributes:
        sent: server of each write, with its time in virtual milliseconds.
    """

    silent = False

    def __init__(self, loop: SimLoop, a_ms: int, refusal: NyalaError | None) -> None:
        self._loop, self._a_ms, self._refusal, self._address = loop, a_ms, refusal, ""
        self.sent: list[tuple[str, int]] = []

    def get(self, address: str, schema: pa.Schema) -> "OneStopped":
        self._address = address
        return self

    async def put(self, header: Any, parts: Any, timeout_ms: int) -> pb.WriteResult:
        self.sent.append((self._address, self._loop.now_us() // 1000))
        if self._address == A:
            await self._loop.delay(self._a_ms * 1000)
        elif self._refusal is not None:
            raise self._refusal
        return pb.WriteResult(rows=1)


class Masters:
    """Masters that name A until B is elected.

    Attributes:
        asked: number of look-ups.
    """

    def __init__(self, loop: SimLoop, elected_ms: int) -> None:
        self._loop, self._elected_ms = loop, elected_ms
        self.asked = 0

    def now_us(self) -> int:
        return self._loop.now_us()

    async def look_up(self, *_: object, **more: object) -> pb.TabletLocationsResponse:
        self.asked += 1
        await self._loop.delay(10_000)
        if self.asked == 1:
            raise Unavailable("no master leads")
        leader = A if self._loop.now_us() < self._elected_ms * 1000 else B
        answer = pb.TabletLocationsResponse()
        found = answer.tablets.add(id="t", state="RUNNING")
        for address in (A, B):
            found.replicas.add(uuid=address, address=address, leader=address == leader)
        return answer


def deliver(
    writes: int, *, a_ms: int, elected_ms: int, refusal: NyalaError | None = None
) -> tuple[list[tuple[str, int]], int, int]:
    """Send writes to A; return those that were sent, the end in milliseconds, and the number of look-ups.

    Args:
        writes: number of writes at once.
        a_ms: time in which A answers.
        elected_ms: when the masters name B instead of A.
        refusal: answer of B; None: it writes the rows.
    """

    async def work(loop: SimLoop) -> tuple[list[tuple[str, int]], int, int]:
        tasks, no_rpc = SimTasks(loop, random.Random(2)), cast("Any", None)
        env = Env(SimClock(loop), random.Random(1), SystemFiles(), tasks, no_rpc)
        masters, streams = Masters(loop, elected_ms), OneStopped(loop, a_ms, refusal)
        delivery = Delivery(TabletCache(masters), HybridClock(env.clock), streams)  # type: ignore[arg-type]
        table = OpenTable(TableId("x"), "x", SCHEMA, PartitionSchema(()), 2, {})
        sent = [
            delivery.send(
                table,
                location(A),
                pb.WriteHeader(tablet_id="t", sequence=n),
                ROWS,
                Attempts(env, 20_000),
            )
            for n in range(writes)
        ]
        await asyncio.gather(*sent)
        return streams.sent, loop.now_us() // 1000, masters.asked

    return run(work)


def test_write_to_a_server_that_is_stopped_goes_to_the_new_leader():
    sent, end_ms, _ = deliver(1, a_ms=60_000, elected_ms=900)
    assert [address for address, _ in sent] == [A, B]
    assert 900 <= end_ms < 1_300


def test_slow_write_to_the_leader_is_not_sent_again():
    sent, end_ms, asked = deliver(1, a_ms=3_900, elected_ms=60_000)
    assert (sent, end_ms) == ([(A, 0)], 3_900)
    assert 4 <= asked <= 6, "less and less often"


def test_look_ups_of_many_silent_writes_are_shared():
    sent, end_ms, asked = deliver(200, a_ms=60_000, elected_ms=900)
    assert sorted(address for address, _ in sent) == [A] * 200 + [B] * 200
    assert end_ms < 1_300
    assert asked < 10


@pytest.mark.parametrize("a_ms", [0, 400])
def test_write_that_is_answered_asks_no_master(a_ms):
    sent, _, asked = deliver(1, a_ms=a_ms, elected_ms=0)
    assert (len(sent), asked) == (1, 0)


def test_refusal_by_the_new_leader_leaves_the_outcome_of_the_silent_try_unknown():
    with pytest.raises(OutcomeUnknown, match="an earlier try of the same rows was not answered"):
        deliver(1, a_ms=60_000, elected_ms=900, refusal=Rejected("the table has a quota"))


@pytest.mark.parametrize("after_ms", [100, 850])
def test_cancelled_write_ends_as_cancelled_also_while_the_masters_are_asked(after_ms):
    async def work(loop: SimLoop) -> None:
        no_rpc: Any = None
        env = Env(
            SimClock(loop),
            random.Random(1),
            SystemFiles(),
            SimTasks(loop, random.Random(2)),
            no_rpc,
        )
        tablet, found = location(A), []

        async def look_again() -> None:
            found.append(loop.now_us())

        async def write() -> None:
            await LeaderWatch(env, tablet, look_again).answer(A, loop.delay(60_000_000))

        writing = loop.create_task(write())
        await loop.delay(after_ms * 1000)
        assert len(found) == (2 if after_ms > 700 else 0)
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        await loop.delay(2_000_000)
        assert len(found) < 3, "the masters are asked no more"

    run(work)
