"""The stream port over real loopback connections: frames, access, malformed bytes."""

import asyncio
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
import uvloop
from prometheus_client import CollectorRegistry, generate_latest

from nyala.common.errors import Corrupt, InvalidArgument, NyalaError, Unavailable
from nyala.env.clock import SystemClock
from nyala.env.rpc import Handlers
from nyala.wire import flight, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.framing import SLAB_BYTES, Slabs
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import reads_pb2 as pb
from nyala.wire.rpc_metrics import RpcMetrics
from nyala.wire.server import GrpcServer
from nyala.wire.stream_frames import (
    BUFFER_BYTES,
    HEADER,
    FrameReader,
    StreamFrame,
    StreamFrameKind,
    frame_head,
    open_message,
    read_header,
    read_open,
)
from tests.unit.wire.support.wire_helpers import BATCH, BatchStore, served
from tests.waiting import eventually

LIMIT = 1 << 20


def test_stream_header_describes_frame_and_damage_is_refused():
    head = frame_head(StreamFrameKind.MESSAGE, b"abc", 7)
    assert read_header(head, LIMIT) == (StreamFrameKind.MESSAGE, 3, 7)
    assert read_header(frame_head(StreamFrameKind.END, b"", None), LIMIT) == (
        StreamFrameKind.END,
        0,
        None,
    )
    refused = 0
    for at in range(HEADER.size):
        for bit in range(8):
            damaged = bytearray(head)
            damaged[at] ^= 1 << bit
            try:
                kind, size, body = read_header(damaged, LIMIT)
            except Corrupt:
                refused += 1
            else:  # another kind, or sizes within the limit
                assert isinstance(kind, StreamFrameKind)
                assert size + (body or 0) <= LIMIT
    assert refused > 100
    assert read_open(open_message(b"t" * 16, "a/B")) == (b"t" * 16, "a/B")
    for raw in (b"", b"t" * 16, b"t" * 16 + b"\xff"):
        with pytest.raises(Corrupt):
            read_open(raw)


def test_frames_of_every_size_are_reassembled():
    drawn = random.Random(5)
    sent: list[tuple[bytes, bytes | None]] = [
        (b"", None), (b"a", b""), (drawn.randbytes(30 << 10), drawn.randbytes(300 << 10)),
        (drawn.randbytes(500 << 10), None), (b"bc", drawn.randbytes(3)), (b"", b"d" * 70_000),
    ]  # fmt: skip
    kind = StreamFrameKind.MESSAGE
    raw = b"".join(
        frame_head(kind, message, None if body is None else len(body)) + (body or b"")
        for message, body in sent
    )
    got: list[StreamFrame] = []
    for most in (1, 100, 40_000, 1 << 20):
        reader, at = FrameReader(LIMIT, Slabs(), got.append), 0
        got.clear()
        while at < len(raw):
            buffer = reader.room()
            assert len(buffer), "the buffer has space for further bytes"
            count = min(len(buffer), drawn.randint(1, most), len(raw) - at)
            buffer[:count] = raw[at : at + count]
            reader.take(count)
            at += count
        assert [(f.message, None if f.body is None else bytes(f.body)) for f in got] == sent
        assert len(reader.room()) == BUFFER_BYTES, "the buffer shrinks after a large message"
        reader.stop()
        reader.take(HEADER.size)
        assert len(got) == len(sent), "no message is delivered after the end"


def slab_of(memory: memoryview) -> int:
    """Return the address of the slab that memory lies in."""
    return int(memory.obj.base.ctypes.data)  # type: ignore[attr-defined]


def test_buffers_are_reused_when_unreferenced():
    slabs = Slabs()
    size = SLAB_BYTES // 4
    held = [slabs.take(size) for _ in range(4)]
    kept, first = held[0], slab_of(held[0])
    held.append(slabs.take(size))
    assert [slab_of(m) == first for m in held] == [True] * 4 + [False]
    assert len({m.obj.ctypes.data for m in held}) == 5  # type: ignore[attr-defined]
    assert all(m.obj.ctypes.data % 16 == 0 for m in held)  # type: ignore[attr-defined]
    held.clear()
    for _ in range(16):
        assert slab_of(slabs.take(size)) != first, "a referenced slab is not reused"
    del kept
    assert any(slab_of(slabs.take(size)) == first for _ in range(16))
    assert len(slabs.take(10)) == 10
    assert len(slabs.take(SLAB_BYTES)) == SLAB_BYTES


async def dial(found: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", found.port)


async def find(rpc: GrpcRpc, address: str) -> Any:
    return await rpc.call(address, methods.FIND_STREAMS, pb.FindStreamsRequest(), timeout_ms=5000)


async def answer_to(found: Any, raw: bytes) -> bytes:
    """Return all bytes that the stream port sends in answer to some bytes, until it closes."""
    reader, writer = await dial(found)
    writer.write(raw)
    if writer.can_write_eof():
        writer.write_eof()
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def test_malformed_bytes_close_only_their_stream_connection():
    rng = random.Random(5)

    async def scenario() -> None:
        store = BatchStore()
        async with served(store) as (rpc, address):
            found = await find(rpc, address)
            opened = frame_head(
                StreamFrameKind.OPEN, open_message(found.ticket, methods.DO_GET.path), None
            )
            ticket = flight_pb2.Ticket(ticket=b"2").SerializeToString()
            good = opened + frame_head(StreamFrameKind.MESSAGE, ticket, None)
            assert len(await answer_to(found, good)) > 2 * BATCH.nbytes
            assert await answer_to(found, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" * 3) == b""
            assert await answer_to(found, frame_head(StreamFrameKind.MESSAGE, ticket, None)) == b""
            other = frame_head(
                StreamFrameKind.OPEN, open_message(b"x" * 16, methods.DO_GET.path), None
            )
            assert b"was issued by another server process" in await answer_to(found, other)
            nothing = frame_head(
                StreamFrameKind.OPEN, open_message(found.ticket, "no/Method"), None
            )
            assert b"does not have the method" in await answer_to(found, nothing)
            large = struct.pack("<4sBBBxIIQ", b"NYSF", 1, 2, 1, 0, 0, 1 << 60)
            assert b"TOO_LARGE" in await answer_to(found, opened + large)
            for _ in range(150):
                damaged = bytearray(good)
                for _ in range(rng.randint(1, 4)):
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                await answer_to(found, bytes(damaged[: rng.randint(1, len(damaged))]))
            got = [d async for d in rpc.stream(address, methods.DO_GET, _ticket(1))]
            assert flight.read_batch(BATCH.schema, got[1].header, got[1].body).equals(BATCH)

    uvloop.run(scenario())


def test_paths_that_a_server_does_not_have_are_counted_under_one_name():
    registry = CollectorRegistry()

    async def scenario() -> None:
        server = GrpcServer(
            BatchStore().handlers(), "127.0.0.1:0", metrics=RpcMetrics(SystemClock(), registry)
        )
        address, rpc = await server.start(), GrpcRpc()
        found = await find(rpc, address)
        for number in range(20):
            ticket = found.ticket if number % 2 else b"x" * 16
            opened = open_message(ticket, f"no/Method-{number}")
            refused = await answer_to(found, frame_head(StreamFrameKind.OPEN, opened, None))
            assert b"does not have" in refused or b"another server process" in refused
        await rpc.close()
        await server.stop(0)

    uvloop.run(scenario())
    text = generate_latest(registry).decode()
    assert "no/Method" not in text, "the counters of a path are never freed"
    for code in ("UNAVAILABLE", "INVALID_ARGUMENT"):
        labels = {"code": code, "method": "unknown"}
        assert registry.get_sample_value("nyala_rpc_calls_total", labels) == 10


def _ticket(batches: int) -> flight_pb2.Ticket:
    return flight_pb2.Ticket(ticket=b"%d" % batches)


def test_restarted_server_is_reconnected():
    async def scenario() -> None:
        store = BatchStore()
        first = GrpcServer(store.handlers(), "127.0.0.1:0")
        address, rpc = await first.start(), GrpcRpc()
        assert len([d async for d in rpc.stream(address, methods.DO_GET, _ticket(3))]) == 4
        await first.stop(0)
        second = GrpcServer(store.handlers(), address)
        await second.start()
        assert len([d async for d in rpc.stream(address, methods.DO_GET, _ticket(3))]) == 4
        await rpc.close()
        await second.stop(0)

    uvloop.run(scenario())


class Desk:
    """Server that answers look-ups on the test's command."""

    def __init__(self) -> None:
        self.open: list[tuple[pb.GetRequest, Callable[[pb.GetResponse], None]]] = []

    def get(self, request: pb.GetRequest, answer: Callable[[pb.GetResponse], None]) -> None:
        if request.request == 13:
            raise InvalidArgument("not this one")
        self.open.append((request, answer))

    def handlers(self) -> Handlers:
        return {methods.GET: self.get}

    def answer(self, number: int) -> None:
        request, answer = self.open.pop(number)
        answer(pb.GetResponse(request=request.request))


def test_stream_requests_are_answered_in_any_order_with_one_end():
    async def scenario() -> None:
        desk = Desk()
        answers: list[Any] = []
        server = GrpcServer(desk.handlers(), "127.0.0.1:0")
        address, rpc = await server.start(), GrpcRpc()
        request_stream = rpc.request_stream(address, methods.GET, answers.append)
        for number in (1, 2, 3):
            request_stream.send(pb.GetRequest(request=number))
        request_stream.end()
        await eventually(lambda: len(desk.open) == 3, "three requests")
        for place in (1, 1, 0):
            desk.answer(place)
        await eventually(lambda: len(answers) == 4, "three answers and the end")
        assert [a.request for a in answers[:3]] == [2, 3, 1]
        assert isinstance(answers[3], Unavailable)
        answers.clear()
        request_stream = rpc.request_stream(address, methods.GET, answers.append)
        request_stream.send(pb.GetRequest(request=13))
        await eventually(lambda: answers, "the refusal")
        assert isinstance(answers[0], InvalidArgument)
        answers.clear()
        request_stream = rpc.request_stream(address, methods.GET, answers.append)
        for number in range(100, 300):
            request_stream.send(pb.GetRequest(request=number))
        await eventually(lambda: len(desk.open) >= 64, "as many as may be under way")
        answered = 0
        while answered < 200:
            await eventually(lambda: desk.open, "more of them")
            desk.answer(0)
            answered += 1
        await eventually(lambda: len(answers) == 200, "all answers")
        request_stream.send(pb.GetRequest(request=7))
        await eventually(lambda: desk.open, "a further request is open")
        await server.stop(0)
        await eventually(lambda: len(answers) == 201, "the end of the server")
        assert isinstance(answers[200], NyalaError)
        await rpc.close()
        errors: list[Any] = []
        GrpcRpc().request_stream(address, methods.GET, errors.append).send(pb.GetRequest())
        await eventually(lambda: errors, "the call has failed")
        assert isinstance(errors[0], Unavailable)

    uvloop.run(scenario())


def test_grpc_fallback_sends_requests_one_by_one():
    import grpc

    async def scenario() -> None:
        desk = Desk()
        server = GrpcServer(desk.handlers(), "127.0.0.1:0", RpcLimits())
        address = await server.start()
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(f"/{methods.GET.path}")()
            for number in (1, 2):
                await call.write(pb.GetRequest(request=number).SerializeToString())
            await call.done_writing()
            await eventually(lambda: len(desk.open) == 2, "two requests")
            desk.answer(1)
            desk.answer(0)
            found = [pb.GetResponse.FromString(raw).request async for raw in call]
        assert found == [2, 1]
        await server.stop(0)

    uvloop.run(scenario())
