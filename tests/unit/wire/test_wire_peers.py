"""The peer port on real loopback connections: delivery, lanes, restarts, and what bad bytes do."""

import asyncio
import contextlib
import logging
import random
from dataclasses import dataclass, field

import pytest
import uvloop

from nyala.common import addresses
from nyala.common.errors import Forbidden, InvalidArgument
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.env.env import system_env
from nyala.raft.messages import AppendEntries, AppendReply, Entry, EntryKind, PeerBatch, RequestVote
from nyala.wire.channels import GrpcRpc
from nyala.wire.frames import HEADER, FrameKind, encode_frame
from nyala.wire.peer_server import BUFFER_BYTES, PeerConnection, PeerServer
from nyala.wire.peers import Lane, PeerLimits, PeerTransport, _split
from tests.waiting import eventually

A, B, GROUP = ServerUuid("a" * 32), ServerUuid("b" * 32), TabletId("7" * 32)
CLUSTER = "c" * 32


def heartbeat(n, sender=A, to=B):
    return PeerBatch(
        sender, to, n, ((GROUP, AppendEntries(sender=sender, to=to, term=1, round=n)),)
    )


def append(payload, index=1, groups=1):
    entries = (Entry(OpId(1, index), index, EntryKind.OPERATION, payload),)
    message = AppendEntries(sender=A, to=B, term=1, entries=entries)
    return PeerBatch(A, B, index, ((GROUP, message),) * groups)


@dataclass
class Peer:
    transport: PeerTransport
    address: str
    got: list[PeerBatch] = field(default_factory=list)
    lost: list[ServerUuid] = field(default_factory=list)

    def rounds(self):
        return [m.round for b in self.got for _, m in b.messages if isinstance(m, AppendEntries)]


@contextlib.asynccontextmanager
async def peers(*uuids, limits=None, cluster=CLUSTER, address="127.0.0.1:0"):
    env = system_env(GrpcRpc())
    started = []
    try:
        for uuid in uuids:
            transport = PeerTransport(env, lambda: cluster, limits)
            peer = Peer(transport, await transport.listen(address, uuid))
            transport.receive(peer.got.append, peer.lost.append)
            started.append(peer)
        yield started
    finally:
        for peer in started:
            await peer.transport.close()
        await env.tasks.close()
        await env.rpc.close()  # type: ignore[attr-defined]


async def raw_connection(address, *chunks):
    """Send bytes to a peer port and return once the other side has closed the connection."""
    reader, writer = await asyncio.open_connection(*addresses.parse(address))
    try:
        for chunk in chunks:
            writer.write(chunk)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionError):
                await writer.drain()
                assert await reader.read() == b""
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def drops(peer, count, what):
    await eventually(lambda: peer.transport.dropped() == count, f"dropped: {what}")


def hello(sender=A, to=B, cluster=CLUSTER):
    return encode_frame(PeerBatch(sender, to, 0, ()), cluster, FrameKind.HELLO)


def test_batches_cross_in_both_directions_in_order():
    async def story():
        async with peers(A, B) as (a, b):
            for n in range(1, 101):
                a.transport.send(b.address, heartbeat(n))
                b.transport.send(a.address, heartbeat(n, B, A))
            await eventually(lambda: len(a.got) == len(b.got) == 100, "100 batches each way")
            assert b.rounds() == a.rounds() == list(range(1, 101))
            assert b.got[0] == heartbeat(1)
            assert a.transport.dropped() == 0

    uvloop.run(story())  # the loop of the servers


def test_a_large_append_arrives_whole_and_many_are_cut_into_frames():
    async def story():
        async with peers(A, B) as (a, b):
            sent = append(bytes(range(256)) * (16 << 12))  # 16 MiB
            a.transport.send(b.address, sent)
            await eventually(lambda: b.got == [sent], "one append of 16 MiB")
            b.got.clear()
            a.transport.send(b.address, append(bytes(3 << 20), groups=5))
            await eventually(lambda: len(b.got) == 5, "five frames")

    uvloop.run(story())  # the loop of the servers


def test_appends_and_control_messages_travel_apart():
    vote = RequestVote(sender=A, to=B, term=2, last=OpId(1, 1))
    reply = AppendReply(sender=A, to=B, term=1, success=True)
    mixed = PeerBatch(
        A, B, 5, (*append(b"x").messages, (GROUP, vote), *heartbeat(1).messages, (GROUP, reply))
    )
    parts = list(_split(mixed, 1 << 20))
    assert [lane for lane, _ in parts] == [Lane.CONTROL, Lane.APPENDS]
    assert [m for _, m in parts[0][1].messages] == [vote, heartbeat(1).messages[0][1], reply]
    assert parts[1][1].messages == append(b"x").messages
    assert all(part.hlc == 5 for _, part in parts)


def test_a_batch_without_messages_travels_as_a_sign_of_life():
    alive = PeerBatch(A, B, 5, (), 0, 7, 2, (GROUP,))
    assert list(_split(alive, 1 << 20)) == [(Lane.CONTROL, alive)]


async def stuck_story(a, address, stuck, control):
    for n in range(40):
        a.transport.send(address, append(bytes(1 << 20), n))
        a.transport.send(address, heartbeat(n))
    await eventually(lambda: stuck and control, "both lanes connected")
    for n in range(40):
        a.transport.send(address, append(bytes(1 << 20), n))
    assert a.transport.dropped() > 30  # the buffer is bounded
    before = len(control)
    a.transport.send(address, heartbeat(999))
    await eventually(lambda: len(control) > before, "a heartbeat passes the stuck appends", 5)


def test_a_peer_that_does_not_read_its_appends_still_gets_heartbeats():
    async def story():
        limits = PeerLimits(send_buffer_bytes=4 << 20)
        async with peers(A, limits=limits) as (a,):
            control: list[int] = []

            async def accept(reader, writer):
                writers.append(writer)
                header = await reader.readexactly(HEADER.size)
                await reader.readexactly(HEADER.unpack(header)[4])
                first = await reader.readexactly(HEADER.size)
                if HEADER.unpack(first)[4] > 1000:
                    stuck.append(1)  # the lane of appends: read nothing more
                    return
                control.append(1)
                while await reader.read(1 << 16):
                    control.append(1)

            stuck: list[int] = []
            writers: list[asyncio.StreamWriter] = []
            deaf = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 16)
            address = addresses.join(*deaf.sockets[0].getsockname())
            try:
                await stuck_story(a, address, stuck, control)
            finally:
                await a.transport.close()
                for writer in writers:
                    writer.transport.abort()
                await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)
                deaf.close()
                await deaf.wait_closed()

    uvloop.run(story())  # the loop of the servers


def test_a_peer_that_ends_is_reported_though_nothing_is_sent_to_it():
    async def story():
        async with peers(A, limits=PeerLimits(good_connection_ms=0)) as (a,):
            async with peers(B) as (b,):
                a.transport.send(b.address, heartbeat(1))
                await eventually(lambda: b.rounds() == [1], "the first heartbeat")
                assert a.lost == []
            await eventually(lambda: a.lost, "its port refuses")
            assert set(a.lost) == {B}

    uvloop.run(story())


def test_a_lost_connection_to_a_peer_that_lives_is_made_again_and_reported_to_nobody():
    async def story():
        async with peers(A, B, limits=PeerLimits(good_connection_ms=0)) as (a, b):
            a.transport.send(b.address, heartbeat(1))
            await eventually(lambda: b.rounds() == [1], "the first heartbeat")
            (lane,) = a.transport._lanes.values()
            was = lane._transport
            assert was is not None
            was.abort()
            await eventually(lambda: lane._transport not in (None, was), "dialled again")
            assert a.lost == []

    uvloop.run(story())


class GivenUp(asyncio.WriteTransport):
    """What a loop leaves of a connection that was made just when its time was over."""

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return True

    def abort(self):
        pass

    def write(self, data):
        pass

    def writelines(self, list_of_data):
        raise RuntimeError("the handler is closed")


def test_a_connection_that_is_made_when_its_time_is_over_is_made_again(monkeypatch):
    async def story():
        async with peers(A, B, limits=PeerLimits(good_connection_ms=0)) as (a, b):
            loop = asyncio.get_running_loop()
            lanes = a.transport._lanes

            async def made_too_late(*_):
                (lane,) = lanes.values()
                waiting, lane._waiting = lane._waiting, []
                lane.connection_made(GivenUp())
                lane._waiting = waiting
                a.transport.send(b.address, heartbeat(2))  # raises nothing
                monkeypatch.undo()
                raise TimeoutError

            monkeypatch.setattr(asyncio, "get_running_loop", lambda: Loop(loop, made_too_late))
            a.transport.send(b.address, heartbeat(1))
            sent = 2

            def send_again():
                nonlocal sent
                sent += 1
                a.transport.send(b.address, heartbeat(sent))
                return b.got

            await eventually(send_again, "a heartbeat over a new connection")

    uvloop.run(story())


class Loop:
    """A loop whose `create_connection` is another one."""

    def __init__(self, loop, create_connection):
        self._loop = loop
        self.create_connection = create_connection

    def __getattr__(self, name):
        return getattr(self._loop, name)


def test_sending_resumes_after_the_peer_restarts():
    async def story():
        async with peers(A) as (a,):
            async with peers(B) as (b,):
                a.transport.send(b.address, heartbeat(1))
                await eventually(lambda: b.rounds() == [1], "the first heartbeat")
                address = b.address
            sent = 1

            def send_again():
                nonlocal sent
                sent += 1
                a.transport.send(address, heartbeat(sent))
                return a.transport.dropped()

            await eventually(send_again, "a frame is dropped while the peer is down")
            async with peers(B, address=address) as (b,):
                await eventually(lambda: (send_again(), b.got)[1], "a heartbeat after the restart")
                assert b.rounds() == sorted(b.rounds())

    uvloop.run(story())  # the loop of the servers


@pytest.mark.parametrize(
    "chunks",
    [
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"\0" * 64],
        [HEADER.pack(b"NYPF", 2, 2, 0, 0xFFFF_FFFF, 0)],
        [encode_frame(heartbeat(1), CLUSTER)],  # no hello
        [hello(cluster="d" * 32)],
        [hello(to=A)],
        [hello(), encode_frame(heartbeat(1), CLUSTER)[:-1] + b"\xff"],
        [hello(), encode_frame(heartbeat(1, sender=ServerUuid("e" * 32)), CLUSTER)],
    ],
    ids=["http", "zeros", "length", "no hello", "cluster", "uuid", "checksum", "other sender"],
)
def test_bad_bytes_close_their_connection_only(chunks, caplog):
    async def story():
        async with peers(A, B) as (a, b):
            a.transport.send(b.address, heartbeat(1))
            await eventually(lambda: b.rounds() == [1], "a good connection")
            await raw_connection(b.address, *chunks)
            a.transport.send(b.address, heartbeat(2))
            await eventually(lambda: b.rounds() == [1, 2], "the good connection still works")
            assert a.transport.dropped() == 0

    with caplog.at_level(logging.WARNING):
        uvloop.run(story())  # the loop of the servers
    assert "closed" in caplog.text


def test_frames_may_come_byte_by_byte_twice_and_before_the_cluster_is_known():
    async def story():
        async with peers(B) as (b,):
            whole = hello(cluster="") + encode_frame(heartbeat(1), "") * 2
            chunks = [whole[n : n + 1] for n in range(len(whole))]
            await raw_connection(b.address, *chunks, b"\0" * HEADER.size)
            assert b.rounds() == [1, 1]  # duplicates are Raft's to bear

    uvloop.run(story())  # the loop of the servers


def test_a_failing_handler_does_not_stop_the_port(caplog):
    async def story():
        async with peers(A, B) as (a, b):

            def fail(batch):
                raise RuntimeError("handler broke")

            b.transport.receive(fail, b.lost.append)
            a.transport.send(b.address, heartbeat(1))
            await eventually(lambda: "handler broke" in caplog.text, "the failure is logged")
            b.transport.receive(b.got.append, b.lost.append)
            numbers = iter(range(2, 10_000))
            await eventually(
                lambda: (a.transport.send(b.address, heartbeat(next(numbers))), b.got)[1],
                "delivery goes on",
            )

    uvloop.run(story())  # the loop of the servers


def test_connections_are_limited():
    async def story():
        async with peers(B, limits=PeerLimits(connections=1)) as (b,):
            host, port = addresses.parse(b.address)
            _, first = await asyncio.open_connection(host, port)
            first.write(hello() + encode_frame(heartbeat(1), CLUSTER))
            await eventually(lambda: b.rounds() == [1], "the first connection works")
            await raw_connection(b.address)
            first.write(encode_frame(heartbeat(2), CLUSTER))
            await eventually(lambda: b.rounds() == [1, 2], "and still does")
            first.close()
            await first.wait_closed()

    uvloop.run(story())  # the loop of the servers


def test_a_dead_address_costs_dropped_frames_and_nothing_else(caplog):
    async def story():
        async with peers(A) as (a,):
            for number, address in enumerate(("127.0.0.1:1", "nonsense", f"{'x' * 80}.invalid:1")):
                a.transport.send(address, heartbeat(1))
                await drops(a, number + 1, address)

    uvloop.run(story())  # the loop of the servers
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_the_peer_port_binds_loopback_only_and_names_a_port_in_use():
    async def story():
        async with peers(A) as (a,):
            other = PeerTransport(system_env(GrpcRpc()), lambda: CLUSTER)
            with pytest.raises(InvalidArgument, match=f"cannot listen for peers on {a.address}"):
                await other.listen(a.address, B)
            with pytest.raises(Forbidden):
                await other.listen("0.0.0.0:0", B)

    uvloop.run(story())  # the loop of the servers


def test_frames_of_every_size_arrive_whole_however_they_are_cut():
    """Pieces small and large, several frames at a time, frames far larger than what is read at once."""
    drawn = random.Random(5)
    sizes = [0, 1, 15 << 10, 17 << 10, 300 << 10, 3, 2 << 20, 5 << 20, 9, 700 << 10, 40 << 10, 2]
    batches = [append(drawn.randbytes(size), n) for n, size in enumerate(sizes, 1)]
    sent = hello() + b"".join(encode_frame(b, CLUSTER) for b in batches)
    got: list[PeerBatch] = []
    server = PeerServer(B, lambda: CLUSTER, got.append, 8 << 20, 9, 60_000, Metrics())

    async def story():
        connection = PeerConnection(server)
        connection.connection_made(asyncio.Transport())
        at = 0
        while at < len(sent):
            room = connection.get_buffer(-1)
            count = min(len(room), drawn.choice((1, 7, 5_000, 1 << 20)), len(sent) - at)
            room[:count] = sent[at : at + count]
            connection.buffer_updated(count)
            at += count
        assert len(connection.get_buffer(-1)) == BUFFER_BYTES, "what large frames needed is kept"
        connection.connection_lost(None)

    asyncio.run(story())
    assert got == batches
