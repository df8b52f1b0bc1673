"""Outcome of each batch on a stream that ends; the pieces of a write, and its errors."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.write.batcher import BatchLimits, cut_batch
from nyala.client.write.put_streams import PutStream, PutStreams
from nyala.client.write.upload import error_rank
from nyala.common.errors import (
    InvalidArgument,
    NyalaError,
    OutcomeUnknown,
    Throttled,
    TimedOut,
    TooLarge,
    Unavailable,
)
from nyala.env.env import Env, system_env
from nyala.env.rpc import Method
from nyala.wire import flight
from nyala.wire.proto import nyala_pb2 as pb

SCHEMA = pa.schema([pa.field("k", pa.int64())])
SMALL = flight.batch_parts(pa.record_batch([pa.array([1])], schema=SCHEMA))
LARGE = flight.batch_parts(pa.record_batch([pa.array(range(100_000))], schema=SCHEMA))


class BreakingRpc:
    """Every stream accepts `batches` batches and then fails with `error`; None: it never answers."""

    def __init__(self, error: NyalaError | None, batches: int) -> None:
        self.error = error
        self.batches = batches

    async def call(self, address: str, method: Method, request: Any, *, timeout_ms: int) -> Any:
        raise Unavailable("unexpected call")

    async def stream(
        self, address: str, method: Method, request: Any, *, timeout_ms: int | None = None
    ) -> AsyncIterator[Any]:
        taken = -1  # the first message is the schema
        async for _ in request:
            taken += 1
            if taken == self.batches and self.error is not None:
                raise self.error
        return
        yield

    def request_stream(self, *args: Any, **more: Any) -> Any:
        raise AssertionError("unexpected stream")


def put_two(error: NyalaError) -> list[BaseException]:
    """Put a small and a large batch on a stream that then breaks; return both outcomes."""

    async def scenario() -> list[Any]:
        env = system_env(BreakingRpc(error, 2))
        stream = PutStream(env, "h:1", SCHEMA)
        puts = [stream.put(pb.WriteHeader(), parts, 5_000) for parts in (SMALL, LARGE)]
        try:
            return await asyncio.gather(*puts, return_exceptions=True)
        finally:
            await env.tasks.close()

    return asyncio.run(scenario())


def test_oversized_batch_is_refused_and_others_are_resent():
    small, large = put_two(TooLarge("over", {"limit": "100000", "size": "800500"}))
    assert isinstance(large, TooLarge)
    assert isinstance(small, OutcomeUnknown)


@pytest.mark.parametrize("error", [NyalaError("bug"), Throttled("full"), TimedOut("late")])
def test_broken_stream_gives_unknown_outcome_for_its_batches(error):
    assert all(isinstance(e, OutcomeUnknown) for e in put_two(error))


@pytest.mark.parametrize("error", [Unavailable("gone"), InvalidArgument("no schema")])
def test_refused_stream_reports_its_reason(error):
    first, second = put_two(error)
    assert first is not second, "each caller has an error of its own"
    assert [(type(e), str(e)) for e in (first, second)] == [(type(error), str(error))] * 2


async def _one_turn() -> None:
    turn = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turn.set_result, None)
    await turn


def with_streams(scenario: Any) -> Any:
    async def run() -> Any:
        env: Env = system_env(BreakingRpc(None, 0))
        try:
            return await scenario(PutStreams(env))
        finally:
            await env.tasks.close()

    return asyncio.run(run())


def test_new_stream_opens_while_others_are_busy():
    async def scenario(streams: PutStreams) -> None:
        busy = [streams.get(f"h:{n}", SCHEMA) for n in range(1, 65)]
        puts = [asyncio.ensure_future(s.put(pb.WriteHeader(), SMALL, 60_000)) for s in busy]
        await _one_turn()
        assert not any(s.idle for s in busy)
        assert not streams.get("h:65", SCHEMA).broken
        for put in puts:
            put.cancel()
        await asyncio.gather(*puts, return_exceptions=True)

    with_streams(scenario)


def test_closed_stream_accepts_no_batches():
    async def scenario(streams: PutStreams) -> None:
        stream = streams.get("h:1", SCHEMA)
        stream.close()
        with pytest.raises(Unavailable):
            await stream.put(pb.WriteHeader(), SMALL, 60_000)

    with_streams(scenario)


def test_unknown_outcome_is_raised_before_failure_without_effect():
    results = [TimedOut("no effect"), OutcomeUnknown("perhaps"), InvalidArgument("refused")]
    assert isinstance(min(results, key=error_rank), OutcomeUnknown)


def test_adjacent_large_rows_are_split():
    cells = [b"x"] * 9_000 + [b"x" * 100_000] * 100 + [b"x"] * 9_000
    batch = pa.record_batch([pa.array(cells, pa.binary())], names=["v"])
    pieces = cut_batch(batch, BatchLimits(batch_rows=10_000, batch_bytes=1 << 20), 2 << 20)
    assert [at for at, _ in pieces] == [0, *_ends(pieces)[:-1]]
    assert pa.Table.from_batches([p for _, p in pieces]).column(0).to_pylist() == cells
    assert max(p.nbytes for _, p in pieces) <= 2 << 20


def _ends(pieces: list[tuple[int, pa.RecordBatch]]) -> list[int]:
    return [at + piece.num_rows for at, piece in pieces]


def test_small_slice_of_large_table_is_not_split():
    batch = pa.record_batch([pa.array(range(100_000))], names=["v"]).slice(5, 100)
    assert len(cut_batch(batch, BatchLimits(batch_rows=10_000, batch_bytes=1 << 20), 2 << 20)) == 1
