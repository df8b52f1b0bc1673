"""The peer port on real loopback connections: delivery, order, lanes, frames."""

import asyncio
import random

import uvloop

from nyala.common import addresses
from nyala.common.ids import OpId
from nyala.common.metrics import Metrics
from nyala.raft.messages import AppendReply, PeerBatch, RequestVote
from nyala.wire.frames import HEADER, encode_frame
from nyala.wire.limits import PeerLimits
from nyala.wire.peer_server import BUFFER_BYTES, PeerConnection, PeerServer
from nyala.wire.peers import ConnectionClass, split_batch
from tests.unit.wire.support.peer_port import (
    CLUSTER,
    GROUP,
    A,
    B,
    append,
    heartbeat,
    hello,
    peers,
    raw_connection,
)
from tests.waiting import eventually


def test_batches_arrive_in_order_in_both_directions():
    async def scenario():
        async with peers(A, B) as (a, b):
            for n in range(1, 101):
                a.transport.send(b.address, heartbeat(n))
                b.transport.send(a.address, heartbeat(n, B, A))
            await eventually(lambda: len(a.got) == len(b.got) == 100, "100 batches each way")
            assert b.rounds() == a.rounds() == list(range(1, 101))
            assert b.got[0] == heartbeat(1)
            assert a.transport.dropped() == 0

    uvloop.run(scenario())  # the loop of the servers


def test_large_append_arrives_complete_and_many_are_split_into_frames():
    async def scenario():
        async with peers(A, B) as (a, b):
            sent = append(bytes(range(256)) * (16 << 12))  # 16 MiB
            a.transport.send(b.address, sent)
            await eventually(lambda: b.got == [sent], "one append of 16 MiB")
            b.got.clear()
            a.transport.send(b.address, append(bytes(3 << 20), groups=5))
            await eventually(lambda: len(b.got) == 5, "five frames")

    uvloop.run(scenario())  # the loop of the servers


def test_appends_and_control_messages_use_separate_connections():
    vote = RequestVote(sender=A, to=B, term=2, last=OpId(1, 1))
    reply = AppendReply(sender=A, to=B, term=1, success=True)
    mixed = PeerBatch(
        A, B, 5, (*append(b"x").messages, (GROUP, vote), *heartbeat(1).messages, (GROUP, reply))
    )
    parts = list(split_batch(mixed, 1 << 20))
    assert [lane for lane, _ in parts] == [ConnectionClass.CONTROL, ConnectionClass.APPENDS]
    assert [m for _, m in parts[0][1].messages] == [vote, heartbeat(1).messages[0][1], reply]
    assert parts[1][1].messages == append(b"x").messages
    assert all(part.hlc == 5 for _, part in parts)


def test_batch_without_messages_is_sent_as_keepalive():
    alive = PeerBatch(A, B, 5, (), 0, 7, 2, (GROUP,))
    assert list(split_batch(alive, 1 << 20)) == [(ConnectionClass.CONTROL, alive)]


async def stuck_scenario(a, address, stuck, control):
    for n in range(40):
        a.transport.send(address, append(bytes(1 << 20), n))
        a.transport.send(address, heartbeat(n))
    await eventually(lambda: stuck and control, "both lanes connected")
    for n in range(40):
        a.transport.send(address, append(bytes(1 << 20), n))
    assert a.transport.dropped() > 30  # the buffer is bounded
    before = len(control)
    a.transport.send(address, heartbeat(999))
    await eventually(lambda: len(control) > before, "a heartbeat passes the stuck appends")


def test_peer_not_reading_appends_still_receives_heartbeats():
    async def scenario():
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
            silent = await asyncio.start_server(accept, "127.0.0.1", 0, limit=1 << 16)
            address = addresses.join(*silent.sockets[0].getsockname())
            try:
                await stuck_scenario(a, address, stuck, control)
            finally:
                await a.transport.close()
                for writer in writers:
                    writer.transport.abort()
                await asyncio.gather(*(w.wait_closed() for w in writers), return_exceptions=True)
                silent.close()
                await silent.wait_closed()

    uvloop.run(scenario())  # the loop of the servers


def test_frames_are_accepted_byte_by_byte_duplicated_and_before_cluster_id():
    async def scenario():
        async with peers(B) as (b,):
            whole = hello(cluster="") + encode_frame(heartbeat(1), "") * 2
            chunks = [whole[n : n + 1] for n in range(len(whole))]
            await raw_connection(b.address, *chunks, b"\0" * HEADER.size)
            assert b.rounds() == [1, 1]  # Raft tolerates duplicates

    uvloop.run(scenario())  # the loop of the servers


def test_failing_handler_does_not_stop_peer_port(caplog):
    async def scenario():
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
                "delivery continues",
            )

    uvloop.run(scenario())  # the loop of the servers


def test_frames_of_every_size_are_reassembled():
    """Small and large pieces, several frames at a time, frames larger than the read buffer."""
    drawn = random.Random(5)
    sizes = [0, 1, 15 << 10, 17 << 10, 300 << 10, 3, 2 << 20, 5 << 20, 9, 700 << 10, 40 << 10, 2]
    batches = [append(drawn.randbytes(size), n) for n, size in enumerate(sizes, 1)]
    sent = hello() + b"".join(encode_frame(b, CLUSTER) for b in batches)
    got: list[PeerBatch] = []
    server = PeerServer(B, lambda: CLUSTER, got.append, PeerLimits(), Metrics())

    async def scenario():
        connection = PeerConnection(server)
        connection.connection_made(asyncio.Transport())
        at = 0
        while at < len(sent):
            buffer = connection.get_buffer(-1)
            count = min(len(buffer), drawn.choice((1, 7, 5_000, 1 << 20)), len(sent) - at)
            buffer[:count] = sent[at : at + count]
            connection.buffer_updated(count)
            at += count
        assert len(connection.get_buffer(-1)) == BUFFER_BYTES, (
            "the buffer shrinks after large frames"
        )
        connection.connection_lost(None)

    asyncio.run(scenario())
    assert got == batches
