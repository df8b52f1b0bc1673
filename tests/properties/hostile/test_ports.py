"""Hostile bytes at the stream, peer and join port: no port ends, and good requests are answered then."""

import asyncio
import contextlib
import logging
import random
import ssl
import struct
from collections import Counter

import google_crc32c
import pytest
import uvloop

from nyala.common import addresses
from nyala.common.errors import Corrupt, InvalidArgument
from nyala.security import join_token
from nyala.wire import flight, methods, stream_server
from nyala.wire.flight_data import encode
from nyala.wire.frames import HEADER, decode_frame, encode_frame
from nyala.wire.proto import access_pb2, flight_pb2
from nyala.wire.proto import reads_pb2 as pb
from nyala.wire.stream_frames import StreamFrameKind, frame_head, open_message
from nyala.wire.tls.join_port import JoinPort
from tests.cluster.support.direct import mutations
from tests.properties.hostile.requests import SEED
from tests.unit.security.certificates import server, server_files
from tests.unit.wire.support.peer_port import A, B, append, heartbeat, hello, peers
from tests.unit.wire.support.wire_helpers import BATCH, BatchStore, served
from tests.waiting import eventually, later

AT_ONCE = 25


async def exchanged(
    host: str, port: int, raw: bytes, tls: ssl.SSLContext | None = None, wait_s: float = later(30)
) -> bytes:
    """Send bytes, then wait until the other end has closed the connection; return what it sent.

    With TLS there is no end of what is sent, so that the other end may wait for more: give a short time.
    """
    reader, writer = await asyncio.open_connection(host, port, ssl=tls)
    answer: bytes = b""
    ends = (ConnectionError,) if tls is None else (OSError, TimeoutError)
    with contextlib.suppress(*ends):
        writer.write(raw)
        await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        answer = bytes(await asyncio.wait_for(reader.read(), wait_s))
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


async def all_exchanged(
    host: str, port: int, inputs: list[bytes], tls: ssl.SSLContext | None = None
) -> None:
    wait_s = later(30) if tls is None else 0.1
    for at in range(0, len(inputs), AT_ONCE):
        part = inputs[at : at + AT_ONCE]
        sent = [exchanged(host, port, raw, tls, wait_s) for raw in part]
        await asyncio.gather(*sent)


def conversations(ticket: bytes) -> list[bytes]:
    """Return the bytes of a stream of each kind, as a client sends them."""

    def stream(path: str, *messages: bytes) -> bytes:
        opened = frame_head(StreamFrameKind.OPEN, open_message(ticket, path), None)
        sent = b"".join(frame_head(StreamFrameKind.MESSAGE, m, None) for m in messages)
        return opened + sent + frame_head(StreamFrameKind.END, b"", None)

    call = pb.CallRequest(request=1, method=methods.JOURNAL_READ.path, message=b"\x0a\x01t")
    return [
        stream(methods.DO_GET.path, flight_pb2.Ticket(ticket=b"1").SerializeToString()),
        stream(methods.CALL.path, call.SerializeToString(), call.SerializeToString()),
        stream(
            methods.DO_PUT.path,
            encode(flight.schema_data(BATCH.schema)),
            encode(flight.batch_data(BATCH.slice(0, 3), b"metadata")),
        ),
    ]


def test_stream_port_outlives_hostile_streams(caplog, monkeypatch):
    monkeypatch.setattr(
        stream_server.log, "filters", []
    )  # other tests have used the bound of lines

    async def scenario() -> None:
        async with served(BatchStore()) as (rpc, address):
            asked = pb.FindStreamsRequest()
            found = await rpc.call(address, methods.FIND_STREAMS, asked, timeout_ms=5000)
            good = conversations(found.ticket)
            inputs = [m for n, raw in enumerate(good) for m in mutations(raw, SEED + n, 150)]
            await all_exchanged("127.0.0.1", found.port, inputs)
            ticket = flight_pb2.Ticket(ticket=b"1")
            got = [d async for d in rpc.stream(address, methods.DO_GET, ticket)]
            assert flight.read_batch(BATCH.schema, got[1].header, got[1].body).equals(BATCH)

    with caplog.at_level(logging.WARNING):
        uvloop.run(scenario())
    asked = Counter(r.levelname for r in caplog.records)
    assert asked["WARNING"] > 50, "damaged frames are told"


def checked_again(raw: bytes) -> bytes:
    """Return a damaged frame of the peer port with the length and checksum that it should have."""
    if len(raw) < HEADER.size:
        return raw
    head = bytearray(raw[: HEADER.size])
    struct.pack_into("<I", head, HEADER.size - 8, len(raw) - HEADER.size)
    crc: int = google_crc32c.extend(google_crc32c.value(bytes(head[:-4])), raw[HEADER.size :])
    return bytes(head[:-4]) + crc.to_bytes(4, "little") + raw[HEADER.size :]


def peer_frames(count: int) -> list[bytes]:
    """Return damaged frames of each kind; the checksum of every second one is right."""
    good = [
        encode_frame(heartbeat(1), "c" * 32),
        encode_frame(append(b"x" * 50), "c" * 32),
        hello(),
    ]
    made = [m for n, raw in enumerate(good) for m in mutations(raw, SEED + n, count)]
    return [checked_again(raw) if n % 2 else raw for n, raw in enumerate(made)]


def test_damaged_peer_frames_are_read_or_refused_as_damage():
    seen = Counter[str]()
    for raw in peer_frames(400):
        try:
            decode_frame(raw)
            seen["read"] += 1
        except Corrupt:
            seen["refused"] += 1
    assert min(seen["read"], seen["refused"]) > 100


def test_peer_port_outlives_hostile_frames(caplog):
    async def scenario() -> None:
        async with peers(A, B) as (one, two):
            host, port = addresses.parse(two.address)
            await all_exchanged(host, port, [hello() + raw for raw in peer_frames(70)])
            one.transport.send(two.address, heartbeat(77))
            await eventually(lambda: 77 in two.rounds(), "a good frame arrives")

    with caplog.at_level(logging.ERROR):
        uvloop.run(scenario())
    assert not caplog.records


def test_join_port_outlives_hostile_requests(caplog):
    passed = []

    async def join(request: access_pb2.JoinRequest) -> access_pb2.JoinResponse:
        passed.append(request)
        raise InvalidArgument("no such token; ask for another")

    login = access_pb2.LoginRequest(name="ann", password="correct horse")
    good = [
        access_pb2.JoinRequest(token_id="1" * 16, secret="5" * 64, csr=b"x" * 50, uuid="7" * 32),
        access_pb2.JoinRequest(csr=b"x" * 50, login=login), access_pb2.JoinRequest(),
    ]  # fmt: skip
    raws = [g.SerializeToString() for g in good]
    framed = [struct.pack("<I", len(raw)) + raw for raw in raws]
    inputs = [m for n, raw in enumerate(framed) for m in mutations(raw, SEED + n, 30)]
    for n, raw in enumerate(raws):
        inputs += [struct.pack("<I", len(m)) + m for m in mutations(raw or b"\0", SEED + n, 10)]
    tls = ssl.create_default_context(cafile=server_files().ca)

    async def scenario() -> None:
        port = JoinPort(server(), join)
        address = await port.listen("127.0.0.1:0")
        try:
            await all_exchanged(*addresses.parse(address), inputs, tls)
            answer = await exchanged(*addresses.parse(address), framed[2], tls)
            assert access_pb2.JoinResponse.FromString(answer[4:]).ca
        finally:
            await port.close()

    with caplog.at_level(logging.ERROR):
        uvloop.run(scenario())
    assert not caplog.records
    assert passed


@pytest.mark.parametrize("seed", range(2))
def test_damaged_join_tokens_are_read_or_refused(seed):
    good = str(join_token.new("a" * 64, random.Random(SEED + seed))).encode()
    seen = Counter[str]()
    for raw in mutations(good, SEED + seed, 500):
        try:
            token = join_token.parse(raw.decode("latin-1"))
        except InvalidArgument as err:
            seen["refused"] += 1
            shown = err.message
        else:
            seen["read"] += 1
            shown = repr(token)
        assert len(raw) < 60 or raw[-60:].decode("latin-1") not in shown, "no secret is shown"
    assert seen["refused"] > 100
