"""Unary calls over the stream port: answers, errors, limits, and servers that end."""

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from prometheus_client import CollectorRegistry, generate_latest

from nyala.common.errors import (
    InvalidArgument,
    NotLeader,
    NyalaError,
    TimedOut,
    TooLarge,
    Unavailable,
    from_code,
    may_have_arrived,
)
from nyala.env.clock import SystemClock
from nyala.env.request_stream import MAX_IN_FLIGHT
from nyala.env.rpc import Handlers
from nyala.security import policy
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import journal_pb2 as pb
from nyala.wire.proto import nyala_pb2, reads_pb2
from nyala.wire.request_stream import RequestStreamEnd
from nyala.wire.rpc_metrics import RpcMetrics
from nyala.wire.server import GrpcServer
from nyala.wire.streams.calls import MAX_UNANSWERED_BYTES, CallClient, CallServer
from tests.waiting import eventually

LIMIT = 1 << 20


class Reads:
    """Server of `JournalService.Read`; `tablet_id` says what it does."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.waiting = 0

    async def read(self, request: pb.JournalReadRequest) -> pb.JournalReadResponse:
        """ "wait": answer once `open` is set; "crash"; "big"; the code of an error; else a number."""
        wanted = request.tablet_id
        if wanted == "wait":
            self.waiting += 1
            await self.open.wait()
            self.waiting -= 1
        elif wanted == "crash":
            raise RuntimeError("the secret inside")
        elif wanted == "big":
            entry = pb.JournalEntry(data=bytes(2 * LIMIT))
            return pb.JournalReadResponse(log=pb.LogPage(entries=[entry]))
        elif not wanted.isdigit():
            raise from_code(wanted, "what happened; what to do", {"leader": "abc"})
        return pb.JournalReadResponse(last=int(wanted) if wanted.isdigit() else 0)

    def handlers(self) -> Handlers:
        return {methods.JOURNAL_READ: self.read}


@asynccontextmanager
async def served(
    reads: Reads, address: str = "127.0.0.1:0", metrics: RpcMetrics | None = None
) -> AsyncIterator[str]:
    server = GrpcServer(reads.handlers(), address, RpcLimits(message_bytes=LIMIT), metrics)
    try:
        yield await server.start()
    finally:
        await server.stop(0)


@asynccontextmanager
async def connected() -> AsyncIterator[GrpcRpc]:
    rpc = GrpcRpc(RpcLimits(message_bytes=LIMIT))
    try:
        yield rpc
    finally:
        await rpc.close()


async def read(rpc: GrpcRpc, address: str, wanted: str, timeout_ms: int = 60_000) -> int:
    request = pb.JournalReadRequest(tablet_id=wanted)
    response = await rpc.call(address, methods.JOURNAL_READ, request, timeout_ms=timeout_ms)
    assert isinstance(response, pb.JournalReadResponse)
    return response.last


def test_calls_are_answered_with_results_and_errors_and_are_counted(caplog):
    registry = CollectorRegistry()

    async def scenario() -> None:
        metrics = RpcMetrics(SystemClock(), registry)
        async with served(Reads(), metrics=metrics) as address, connected() as rpc:
            found = await asyncio.gather(*(read(rpc, address, str(n)) for n in range(200)))
            assert found == list(range(200))
            with pytest.raises(NotLeader) as refused:
                await read(rpc, address, "NOT_LEADER")
            assert refused.value.leader == "abc"
            assert not may_have_arrived(refused.value)
            with pytest.raises(NyalaError, match="internal error") as crashed:
                await read(rpc, address, "crash")
            assert "secret" not in str(crashed.value)
            assert await read(rpc, address, "7") == 7

    uvloop.run(scenario())
    text = generate_latest(registry).decode()
    method = "nyala.v1.JournalService/Read"
    assert f'nyala_rpc_calls_total{{code="OK",method="{method}"}} 201.0' in text
    assert f'nyala_rpc_calls_total{{code="NOT_LEADER",method="{method}"}} 1.0' in text
    assert 'method="nyala.v1.StreamService/Call"' in text, "they came over the stream port"


def test_calls_that_wait_do_not_delay_others():
    async def scenario() -> None:
        reads = Reads()
        async with served(reads) as address, connected() as rpc:
            waiting = [asyncio.ensure_future(read(rpc, address, "wait")) for _ in range(150)]
            await eventually(lambda: reads.waiting == 150, "all of them are being executed")
            assert await read(rpc, address, "5") == 5
            reads.open.set()
            assert await asyncio.gather(*waiting) == [0] * 150

    uvloop.run(scenario())


def test_late_call_times_out_and_its_answer_is_dropped():
    async def scenario() -> None:
        reads = Reads()
        async with served(reads) as address, connected() as rpc:
            assert await read(rpc, address, "1") == 1
            with pytest.raises(TimedOut) as late:
                await read(rpc, address, "wait", timeout_ms=500)
            assert may_have_arrived(late.value)
            abandoned = asyncio.ensure_future(read(rpc, address, "wait"))
            await eventually(lambda: reads.waiting == 2, "both are being executed")
            abandoned.cancel()
            reads.open.set()
            assert [await read(rpc, address, str(n)) for n in range(3)] == [0, 1, 2]

    uvloop.run(scenario())


def test_oversized_messages_end_only_their_call():
    async def scenario() -> None:
        reads = Reads()
        async with served(reads) as address, connected() as rpc:
            waiting = asyncio.ensure_future(read(rpc, address, "wait"))
            await eventually(lambda: reads.waiting == 1, "it is being executed")
            for wanted in ("x" * LIMIT, "x" * (LIMIT - 100), "big"):
                with pytest.raises(TooLarge):
                    await read(rpc, address, wanted)
            reads.open.set()
            assert await waiting == 0

    uvloop.run(scenario())


def test_call_to_server_that_ends_may_have_arrived_and_to_absent_one_was_not_sent():
    async def scenario() -> None:
        async with connected() as rpc:
            first, second = Reads(), Reads()
            async with served(first) as address:
                assert await read(rpc, address, "1") == 1
                waiting = asyncio.ensure_future(read(rpc, address, "wait"))
                await eventually(lambda: first.waiting == 1, "it is being executed")
            with pytest.raises(Unavailable) as lost:
                await waiting
            assert may_have_arrived(lost.value)
            async with served(second, address):
                assert await read(rpc, address, "3") == 3
            with pytest.raises(Unavailable) as absent:
                await read(rpc, address, "2")
            assert not may_have_arrived(absent.value)

    uvloop.run(scenario())


def test_streams_of_calls_whose_servers_have_ended_take_no_memory():
    def remaining() -> int:
        gc.collect()
        return sum(isinstance(found, RequestStreamEnd) for found in gc.get_objects())

    async def scenario() -> None:
        address = "127.0.0.1:0"
        async with connected() as rpc:
            for number in range(5):
                async with served(Reads(), address) as address:
                    assert await read(rpc, address, str(number)) == number
            await eventually(lambda: remaining() <= before + 1, "at most the last one remains")

    before = remaining()
    uvloop.run(scenario())


@pytest.mark.parametrize("size", [10, MAX_UNANSWERED_BYTES // 8])
def test_calls_to_a_silent_server_that_nobody_waits_for_take_no_memory(size):
    class Silent:
        """Stream to a server that answers nothing."""

        def __init__(self, on_response) -> None:
            self.on_response, self.ended = on_response, False
            self.calls: list[reads_pb2.CallRequest] = []
            streams.append(self)

        def send(self, request) -> None:
            self.calls.append(request)

        def abandon(self) -> None:
            self.ended = True
            self.on_response(Unavailable("abandoned"))

    streams: list[Silent] = []

    async def scenario() -> None:
        # Silent has what CallClient uses of a stream.
        client = CallClient(lambda _address, on_response: Silent(on_response), 1 << 30)  # type: ignore[arg-type,return-value]
        request = pb.JournalReadRequest(tablet_id="x" * size)

        async def call(timeout_ms: int) -> None:
            await client.call("a:1", methods.JOURNAL_READ, request, timeout_ms)

        patient = asyncio.ensure_future(call(60_000))
        for _ in range(5 * MAX_IN_FLIGHT):
            with pytest.raises(TimedOut):
                await call(0)
        kept = [s for s in streams if not s.ended]
        assert kept[0] is streams[0], "somebody waits for a response"
        assert len(kept) <= 2
        for stream in streams:
            assert len(stream.calls) <= MAX_IN_FLIGHT
            assert sum(len(c.message) for c in stream.calls) < 2 * MAX_UNANSWERED_BYTES
        patient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await patient
        assert streams[0].ended

    uvloop.run(scenario())


def test_closed_client_ends_its_calls():
    async def scenario() -> None:
        async with connected() as rpc:
            reads = Reads()
            async with served(reads) as address:
                open_call = asyncio.ensure_future(read(rpc, address, "wait"))
                await eventually(lambda: reads.waiting == 1, "it is being executed")
                await rpc.close()
                with pytest.raises(Unavailable):
                    await open_call
            with pytest.raises(Unavailable):
                await read(rpc, address, "4")

    uvloop.run(scenario())


def test_methods_of_the_public_port_alone_are_not_called_over_streams():
    """Only the public port audits a call and filters its answer."""
    answered = []

    async def listed(request):
        answered.append(request)
        return nyala_pb2.ListTablesResponse()

    async def scenario() -> None:
        calls = CallServer({methods.LIST_TABLES: listed}, LIMIT, None)
        made: list[reads_pb2.CallResponse] = []
        calls.call(reads_pb2.CallRequest(method=methods.LIST_TABLES.path), made.append)
        await eventually(lambda: bool(made), "it is answered")
        assert made[0].error.code == "INVALID_ARGUMENT"

    uvloop.run(scenario())
    assert not answered
    assert not {m.path for m in methods.STREAMED} & policy.AUDITED


def test_server_without_the_method_is_named():
    async def scenario() -> None:
        async with served(Reads()) as address, connected() as rpc:
            request = pb.JournalStepRequest()
            with pytest.raises(InvalidArgument, match=r"JournalService/Step; upgrade it"):
                await rpc.call(address, methods.JOURNAL_STEP, request, timeout_ms=60_000)

    uvloop.run(scenario())
