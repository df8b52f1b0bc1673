"""A client closed by another thread while a stream of rows is written: the error says how far it came."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.connection import Connection
from nyala.client.results import PartlyWritten
from nyala.client.write.batcher import Batcher, BatchLimits
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.env.clock import HybridClock
from nyala.env.env import system_env
from nyala.env.loop_thread import LoopThread
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.uploads import some


class Requests:
    """Every request is acknowledged at once."""

    def __init__(self) -> None:
        self.rows = 0

    async def deliver(
        self, table: Any, tablet: Any, op: int, piece: pa.RecordBatch, whole: bool, attempts: Any
    ) -> pb.WriteResult:
        self.rows += piece.num_rows
        return pb.WriteResult(rows=piece.num_rows, timestamp=5)


def connection() -> tuple[Any, Requests]:
    """A connection without a cluster."""
    loop, requests = LoopThread("test"), Requests()

    async def made() -> tuple[Any, Any]:
        env = system_env(rpc := GrpcRpc())
        return rpc, Batcher(env, requests, HybridClock(env.clock), BatchLimits())  # type: ignore[arg-type]

    rpc, bulk = loop.run(made())

    async def begin(table: Any, op: int, *, all_or_nothing: bool, timeout_ms: int) -> Any:
        return bulk.begin(table, op, all_or_nothing, timeout_ms)

    async def close() -> None:
        await bulk._env.tasks.close()

    found: Any = object.__new__(Connection)
    found._loop, found._rpc = loop, rpc
    session, options = SimpleNamespace(begin=begin), SimpleNamespace(timeout_ms=10_000)
    found.core = SimpleNamespace(session=session, options=options, close=close)
    return found, requests


@pytest.mark.parametrize("written", [0, 2])
def test_a_stream_whose_client_is_closed_says_how_far_it_came(written):
    client, requests = connection()

    def source():
        for n in range(4):
            if n == written:
                client.close()
            yield some(n * 10, n * 10 + 10)

    with pytest.raises((PartlyWritten, Unavailable)) as raised:
        client.upload(opened(), pb.UPSERT, source(), False)
    told: Any = raised.value
    assert "closed" in str(told)
    assert isinstance(told, PartlyWritten) == (requests.rows > 0)
    if requests.rows:
        assert told.rows == requests.rows
        assert told.next_row == requests.rows + len(told.unknown) + len(told.not_written)
    with pytest.raises(InvalidArgument, match="closed"):
        client.upload(opened(), pb.UPSERT, source(), False)


def test_a_stream_is_written_and_its_source_may_break():
    client, requests = connection()
    try:
        parts = (some(n, n + 10) for n in range(0, 5_000, 10))
        assert client.upload(opened(), pb.UPSERT, parts, False).rows == 5_000
        assert requests.rows == 5_000

        def breaks(rows: int) -> Any:
            yield from [some(0, 10)] * rows
            raise ValueError("the source broke")

        with pytest.raises(PartlyWritten, match="10 rows are written, then: ValueError") as raised:
            client.upload(opened(), pb.UPSERT, breaks(1), False)
        assert raised.value.next_row == 10
        with pytest.raises(ValueError, match="the source broke"):
            client.upload(opened(), pb.UPSERT, breaks(0), False)
    finally:
        client.close()
