"""Invalid input at a real peer port: each kind is refused, counted by its name, and not delivered."""

import asyncio
import contextlib
from typing import Any

import pytest
import uvloop
from msgspec.structs import replace

from nyala.common import addresses
from nyala.common.errors import Corrupt
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.env.env import system_env
from nyala.raft.messages import (
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    PeerBatch,
    RequestVote,
    Suffix,
)
from nyala.wire.channels import GrpcRpc
from nyala.wire.frames import HEADER, MAX_NUMBER, FrameKind, decode_frame, encode_frame
from nyala.wire.limits import PeerLimits
from nyala.wire.peers import PeerTransport
from tests.waiting import eventually

A, B, GROUP = ServerUuid("a" * 32), ServerUuid("b" * 32), TabletId("7" * 32)
CLUSTER = "c" * 32
NAMES: Any = {"sender": A, "to": B}


def frame(message=None, *, sender=A, to=B, cluster=CLUSTER):
    message = message or AppendEntries(sender=sender, to=to, term=1)
    return encode_frame(PeerBatch(sender, to, 0, ((GROUP, message),)), cluster)


def hello(sender=A, to=B, cluster=CLUSTER):
    return encode_frame(PeerBatch(sender, to, 0, ()), cluster, FrameKind.HELLO)


class Port:
    """The peer port of server B, on a real socket."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.got: list[PeerBatch] = []
        self.address = ""

    def refused(self, why):
        name = "nyala_peer_refused_connections_total"
        return self.metrics.registry.get_sample_value(name, {"why": why}) or 0

    async def send(self, *chunks, close=False):
        """Write bytes on a connection of their own; return once the other side has closed it."""
        reader, writer = await asyncio.open_connection(*addresses.parse(self.address))
        with contextlib.suppress(ConnectionError):
            for chunk in chunks:
                writer.write(chunk)
            await writer.drain()
            if close:
                writer.close()
                await writer.wait_closed()
                return
            async with asyncio.timeout(10):
                assert await reader.read() == b""
        writer.close()


def at_a_port(fn, limits=None):
    """Run an async function with an open port."""

    async def main():
        port = Port()
        env = system_env(GrpcRpc())
        transport = PeerTransport(env, lambda: CLUSTER, limits, port.metrics)
        transport.receive(port.got.append, lambda server: None)
        port.address = await transport.listen("127.0.0.1:0", B)
        try:
            await fn(port)
        finally:
            await transport.close()
            await env.tasks.close()
            await env.rpc.close()  # type: ignore[attr-defined]

    uvloop.run(main())


CASES = {
    "cluster": [hello(cluster="d" * 32)],
    "destination": [hello(to=A)],
    "no hello": [frame()],
    "sender": [hello(), frame(sender=ServerUuid("e" * 32))],
    "checksum": [hello(), frame()[:-1] + b"\xff"],
    "version": [hello()[:4] + b"\x09" + hello()[5:]],
    "oversized": [hello(), HEADER.pack(b"NYPF", 3, 2, 0, 0xFFFF_FFFF, 0)],
    "malformed": [b"GET / HTTP/1.1\r\nHost: nyala\r\n\r\n"],
    "number": [hello(), frame(RequestVote(**NAMES, term=MAX_NUMBER + 1, last=OpId(0, 0)))],
}


@pytest.mark.parametrize("why", CASES)
def test_invalid_peer_message_is_refused_counted_and_not_delivered(why):
    async def scenario(port):
        await port.send(*CASES[why])
        await eventually(lambda: port.refused(why) == 1, "counted")
        assert port.got == []
        await port.send(hello(), frame(), b"\0" * HEADER.size)
        assert len(port.got) == 1, "the port still delivers valid messages"

    at_a_port(scenario)


def test_truncated_frame_is_counted():
    async def scenario(port):
        await port.send(hello(), frame()[:-5], close=True)
        await eventually(lambda: port.refused("truncated") == 1, "counted")
        await port.send(hello(), frame(), close=True)
        await eventually(lambda: len(port.got) == 1, "a whole one")
        assert port.refused("truncated") == 1

    at_a_port(scenario)


@pytest.mark.parametrize(("why", "chunks"), [("silent", []), ("stalled", [hello(), frame()[:20]])])
def test_silent_or_stalled_connection_is_closed(why, chunks):
    async def scenario(port):
        await port.send(*chunks)
        assert port.refused(why) == 1
        assert port.got == []

    at_a_port(scenario, PeerLimits(hello_ms=500))


def test_idle_peer_connection_is_kept():
    async def scenario(port):
        reader, writer = await asyncio.open_connection(*addresses.parse(port.address))
        writer.write(hello())
        await port.send()  # another one, without any message, is closed meanwhile
        await port.send()
        assert port.refused("silent") == 2
        writer.write(frame())
        await eventually(lambda: len(port.got) == 1, "the message is delivered")
        writer.close()
        del reader

    at_a_port(scenario, PeerLimits(hello_ms=500))


ENTRY = Entry(OpId(1, 1), 5, EntryKind.OPERATION, b"x")
WRONG = MAX_NUMBER + 1


@pytest.mark.parametrize(
    "message",
    [
        AppendEntries(**NAMES, term=WRONG),
        AppendEntries(**NAMES, term=1, previous=OpId(WRONG, 1)),
        AppendEntries(**NAMES, term=1, previous=OpId(1, WRONG)),
        AppendEntries(**NAMES, term=1, commit=(1 << 64) - 1),
        AppendEntries(**NAMES, term=1, retain_index=WRONG),
        AppendEntries(**NAMES, term=1, round=WRONG),
        AppendEntries(**NAMES, term=1, entries=(replace(ENTRY, id=OpId(WRONG, 1)),)),
        AppendEntries(**NAMES, term=1, entries=(replace(ENTRY, id=OpId(1, WRONG)),)),
        AppendReply(**NAMES, term=1, success=True, match=WRONG),
        RequestVote(**NAMES, term=1, last=OpId(1, WRONG)),
        Suffix(**NAMES, term=1, previous=OpId(0, 0), last=OpId(WRONG, 1)),
        Suffix(**NAMES, term=1, previous=OpId(0, 0), last=OpId(1, WRONG)),
    ],
)
def test_message_numbers_stay_within_group_limits(message):
    with pytest.raises(Corrupt) as caught:
        decode_frame(frame(message))
    assert caught.value.details["why"] == "number"


def test_negative_index_is_decoded_as_absurd_value():
    whole = frame(AppendEntries(**NAMES, term=1, previous=OpId(1, (1 << 64) - 3)))
    with pytest.raises(Corrupt):
        decode_frame(whole)


def test_largest_valid_numbers_are_accepted():
    message = AppendEntries(**NAMES, term=MAX_NUMBER, previous=OpId(MAX_NUMBER, MAX_NUMBER))
    ((_, back),) = decode_frame(frame(message)).batch.messages
    assert back == message
