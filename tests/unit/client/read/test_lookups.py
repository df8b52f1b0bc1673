"""Look-ups of few keys through real servers in virtual time: shared messages, new leaders, odd requests."""

import asyncio
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from nyala.client.alter import AlterSteps
from nyala.client.core import ClientOptions
from nyala.client.deadline import Attempts
from nyala.common.alteration import AddColumn, DropColumn, alter
from nyala.common.errors import (
    InvalidArgument,
    NotFound,
    RangesChanged,
    SchemaMismatch,
    Unavailable,
)
from nyala.common.ids import TabletId
from nyala.common.partitioning.partition import KeyRange, locate
from nyala.common.partitioning.partition_spec import Partition, Range
from nyala.tserver import point_reads
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import reads_pb2
from tests.sim.systems.cluster import SCHEMA, SimCluster
from tests.sim.world.loop import SimLoop, run

SECOND = 1_000_000


def rows(**values: int) -> pa.RecordBatch:
    keys = [int(k[1:]) for k in values]
    return pa.record_batch(
        [pa.array(keys, pa.int64()), pa.array(list(values.values()))], names=["k", "v"]
    )


def encoded(key: int) -> bytes:
    return (key + (1 << 63)).to_bytes(8, "big")


class Scenario:
    """A table of four tablets with keys 0 to 19, v = 10 k, and a client that counts its messages."""

    def __init__(self, loop: SimLoop) -> None:
        self.loop = loop
        self.cluster = SimCluster(loop, seed=11, masters=1)
        self.sent: list[reads_pb2.GetRequest] = []

    async def start(self) -> "Scenario":
        await self.cluster.start()
        self.core = self.cluster.client(ClientOptions(timeout_ms=30_000))
        self.table = await self.cluster.create_table(self.core, tablets=4)
        await self.write(**{f"k{k}": 10 * k for k in range(20)})
        rpc: Any = self.core.env.rpc
        original = rpc.request_stream

        def counted(address: str, method: Any, on_response: Any) -> Any:
            request_stream = original(address, method, on_response)
            send = request_stream.send

            def noted(request: reads_pb2.GetRequest) -> None:
                self.sent.append(request)
                send(request)

            request_stream.send = noted
            return request_stream

        rpc.request_stream = counted
        return self

    async def on(self, work, *args):
        return await self.cluster.run(self.cluster.clients[-1], work, *args)

    async def write(self, **values: int) -> None:
        await self.on(
            lambda: self.core.session.write(
                self.table, pb.UPSERT, rows(**values), all_or_nothing=False, timeout_ms=30_000
            )
        )

    async def one(self, *keys: int, columns=None):
        batch = pa.record_batch([pa.array(keys, pa.int64())], names=["k"])
        return await self.core.get(self.table, batch, columns)

    async def ask(self, address: str, parts: Any) -> Any:
        """Send one request to a given server."""

        async def outgoing() -> Any:
            yield reads_pb2.GetRequest(request=5, timeout_ms=3_000, parts=parts)

        stream = self.core.env.rpc.stream(address, methods.GET, outgoing())
        return [answer async for answer in stream]

    def tablet_of(self, key: int) -> int:
        batch = pa.record_batch([pa.array([key], pa.int64())], names=["k"])
        return int(locate(self.table.schema, self.table.partition_schema, batch)[0])

    async def get(self, *keys: int, columns=None):
        return await self.on(lambda: self.one(*keys, columns=columns))


def scenario(fn):
    def wrapped():
        async def main(loop: SimLoop) -> None:
            await fn(await Scenario(loop).start())

        run(main, max_time_s=300)

    wrapped.__name__ = fn.__name__
    return wrapped


@scenario
async def test_lookup_returns_rows_in_key_order_and_none_for_absent_keys(s):
    assert await s.get(3) == [{"k": 3, "v": 30}]
    assert await s.get(7, 99, 0, 7) == [
        {"k": 7, "v": 70},
        None,
        {"k": 0, "v": 0},
        {"k": 7, "v": 70},
    ]
    assert await s.get(5, columns=("v",)) == [{"v": 50}]
    await s.write(k3=31)
    assert await s.get(3) == [{"k": 3, "v": 31}]
    assert s.sent, "the look-ups used the stream"


@scenario
async def test_concurrent_lookups_share_a_request_per_server(s):
    await s.get(*range(20))  # the streams are open
    s.sent.clear()

    async def many():
        return await asyncio.gather(*(s.one(k) for k in range(20)))

    found = await s.on(many)
    assert found == [[{"k": k, "v": 10 * k}] for k in range(20)]
    assert len(s.sent) <= len(s.cluster.tservers)
    assert sum(len(r.parts) for r in s.sent) == 20


@scenario
async def test_lookup_finds_new_leader_and_uses_its_stream(s):
    await s.get(3)
    for _ in range(3):
        leader = s.cluster.leader_of(s.table.tablets[0].id)
        leader.kill()
        assert await s.get(*range(20)) == [{"k": k, "v": 10 * k} for k in range(20)]
        leader.start()
        await s.loop.delay(5 * SECOND)
    s.sent.clear()
    assert await s.get(*range(20)) == [{"k": k, "v": 10 * k} for k in range(20)]
    s.sent.clear()
    assert await s.get(*range(20)) == [{"k": k, "v": 10 * k} for k in range(20)]
    assert sum(len(r.parts) for r in s.sent) == 4


@scenario
async def test_lookup_with_silent_server_waits_for_an_election_and_not_for_the_server(s):
    await s.get(*range(20))
    leader = s.cluster.leader_of(s.table.tablets[0].id)
    leader.pause()
    began = s.loop.time()
    assert await s.get(*range(20)) == [{"k": k, "v": 10 * k} for k in range(20)]
    assert s.loop.time() - began < 3
    leader.resume()


@pytest.mark.row("A7")
@scenario
async def test_lookup_returns_acknowledged_write_after_leader_change(s):
    for value in range(1, 12):
        await s.write(k1=value)
        if value % 4 == 0:
            leader = s.cluster.leader_of(s.table.tablets[0].id)
            if leader is not None:
                leader.kill(power_cut=False)
        assert await s.get(1) == [{"k": 1, "v": value}]
        for process in s.cluster.tservers:
            if not process.alive:
                process.start()


@pytest.mark.row("A7")
@scenario
async def test_partitioned_leader_answers_no_lookup(s):
    tablet = s.table.tablets[0]
    key = next(k for k in range(20) if s.tablet_of(k) == 0)
    old = s.cluster.leader_of(tablet.id)
    others = [p.name for p in s.cluster.servers if p is not old]
    s.cluster.network.partition([old.name], others)
    await s.write(
        **{f"k{key}": 77}
    )  # the others elect a leader, which the old one may not know yet
    part = reads_pb2.GetPart(tablet_id=tablet.id, column_ids=(0, 1), keys=[encoded(key)])
    [answer] = await s.on(s.ask, old.address, [part])
    assert answer.answers[0].error.code in ("NOT_LEADER", "TIMED_OUT")
    assert await s.get(key) == [{"k": key, "v": 77}]
    s.cluster.network.heal()


@scenario
async def test_lookup_error_of_one_server_fails_only_its_keys(s):
    tablet = s.table.tablets[0]
    good = encoded(1)

    def part(tablet_id=tablet.id, ids=(0, 1), keys=(good,), version=0):
        return reads_pb2.GetPart(
            tablet_id=tablet_id, schema_version=version, column_ids=ids, keys=keys
        )

    parts = [
        part(), part("cd" * 16), part(ids=(77,)), part(keys=[b"x"]), part(keys=[good] * 65),
        part(version=9), part(ids=(1, 1)), part(keys=[good, b""]),
    ]  # fmt: skip

    [answer] = await s.on(s.ask, tablet.leader, parts)
    assert answer.request == 5
    codes = [a.error.code for a in answer.answers]
    assert codes[1:] == [
        "UNAVAILABLE", "INVALID_ARGUMENT", "INVALID_ARGUMENT", "INVALID_ARGUMENT", "SCHEMA_MISMATCH",
        "INVALID_ARGUMENT", "INVALID_ARGUMENT",
    ]  # fmt: skip
    assert codes[0] == ""
    with pytest.raises(InvalidArgument, match="over the limit"):
        await s.on(s.ask, tablet.leader, [part()] * 1025)


@scenario
async def test_pending_lookups_fail_when_client_closes(s):
    rpc, callbacks = s.core.env.rpc, []
    request_stream = rpc.request_stream

    def noted(address: str, method: Any, on_response: Any) -> Any:
        callbacks.append(on_response)
        return request_stream(address, method, on_response)

    with patch.object(rpc, "request_stream", noted):
        waiting = asyncio.ensure_future(s.on(lambda: s.one(1)))
        while not callbacks:
            await s.loop.delay(1)
    callbacks[0](Unavailable("the stream is broken"))
    assert await waiting == [{"k": 1, "v": 10}]  # by a scan
    received: list[Any] = []

    async def unreachable() -> None:
        called = asyncio.Event()

        def on_done(found: Any) -> None:
            received.append(found)
            called.set()

        s.core.getter.lookups.send(
            "nobody:1", s.table, s.table.tablets[0], reads_pb2.GetPart(), on_done, 1000
        )
        await called.wait()

    await s.on(unreachable)
    assert [type(found) for found in received] == [Unavailable]


@scenario
async def test_answers_to_one_request_have_a_limit_in_all_and_the_rest_is_scanned(s):
    """One request for a few large rows, a thousand times, would take gigabytes of its server."""
    tablet, good = s.table.tablets[0], next(k for k in range(20) if s.tablet_of(k) == 0)
    part = reads_pb2.GetPart(tablet_id=tablet.id, column_ids=(0, 1), keys=[encoded(good)])
    [one] = await s.on(s.ask, tablet.leader, [part])
    size = len(one.answers[0].rows)
    with patch.object(point_reads, "MAX_RESPONSE_BYTES", 3 * size):
        [answer] = await s.on(s.ask, tablet.leader, [part] * 5)
        assert [a.error.code for a in answer.answers] == ["", "", "", "TOO_LARGE", "TOO_LARGE"]
        assert sum(len(a.rows) for a in answer.answers) == 3 * size
        assert await s.get(*range(20)) == [{"k": k, "v": 10 * k} for k in range(20)]


@scenario
async def test_lookup_at_dropped_range_says_so_at_once(s):
    unknown = replace(s.table.tablets[0], id=TabletId("f" * 32), leader=None)
    unknown.partition = replace(unknown.partition, range=KeyRange(b"x", b"y"))
    keys = pa.record_batch([pa.array([3], pa.int64())], names=["k"])
    with pytest.raises(RangesChanged, match="its range was dropped"):
        await s.on(
            s.core.getter.retry_via_scan,
            s.table,
            unknown,
            keys,
            None,
            Attempts(s.core.env, 5_000),
            None,
        )


@scenario
async def test_rows_have_the_columns_that_the_table_had_when_the_lookup_began(s):
    waiting = asyncio.ensure_future(s.get(3))
    while not s.sent:
        await s.loop.delay(1)
    dropped = alter(s.table.schema, [DropColumn("v")])
    s.table.schema = alter(dropped, [AddColumn("w", pa.int64())])  # as another thread does
    assert await waiting == [{"k": 3, "v": 30}], "no value of another column"


@scenario
async def test_lookup_of_a_column_that_was_dropped_meanwhile_is_refused_at_once(s):
    s.table.schema = alter(s.table.schema, [DropColumn("v")])
    tablet = s.table.tablets[s.tablet_of(3)]
    with pytest.raises(NotFound, match="'v'"):
        s.core.getter.point_read(s.table, tablet, [encoded(3)], ("v",), lambda: None)


@scenario
async def test_lookup_of_a_column_that_another_client_dropped_says_to_open_the_table_again(s):
    steps = [pb.AlterStep(drop_column="v")]
    await s.on(s.core.ddl.alter_table, s.table, steps)
    with pytest.raises(SchemaMismatch, match="open the table again"):
        await s.get(3)
    assert await s.get(3, columns=("k",)) == [{"k": 3}]


@scenario
async def test_lookup_finds_row_of_a_range_that_another_client_replaced(s):
    ranges = Partition(range=Range(["k"], [(0, 10)]))
    opened = await s.on(s.core.ddl.create_table, "r", SCHEMA, ranges, 3, {})
    steps = AlterSteps(opened)
    steps.drop_range(0, 10)
    steps.add_range(0, 10)
    altered = await s.on(s.core.ddl.alter_table, opened, steps.steps)
    s.table = altered
    await s.write(k3=30)
    s.table = opened
    assert opened.tablets[0].id != altered.tablets[0].id
    assert await s.get(3) == [{"k": 3, "v": 30}], "the dropped tablet does not have it"
