"""Connections of the peer port: lost, late, too many, from ended peers; malformed bytes."""

import asyncio
import contextlib
import logging

import pytest
import uvloop

from nyala.common import addresses
from nyala.common.errors import Forbidden, InvalidArgument
from nyala.common.ids import ServerUuid
from nyala.env.env import system_env
from nyala.wire import peers as transport_module
from nyala.wire.channels import GrpcRpc
from nyala.wire.frames import HEADER, encode_frame
from nyala.wire.limits import PeerLimits
from nyala.wire.peers import PeerTransport
from tests.unit.wire.support.peer_port import (
    CLUSTER,
    A,
    B,
    drops,
    heartbeat,
    hello,
    peers,
    raw_connection,
)
from tests.waiting import eventually


def test_exited_peer_is_reported_without_traffic():
    async def scenario():
        async with peers(A, limits=PeerLimits(good_connection_ms=0)) as (a,):
            async with peers(B) as (b,):
                a.transport.send(b.address, heartbeat(1))
                await eventually(lambda: b.rounds() == [1], "the first heartbeat")
                assert a.lost == []
            await eventually(lambda: a.lost, "the port refuses connections")
            assert set(a.lost) == {B}

    uvloop.run(scenario())


def test_connection_lost_to_living_peer_is_reopened_without_report():
    async def scenario():
        accepted: list[asyncio.StreamWriter] = []
        server = await asyncio.start_server(lambda _, w: accepted.append(w), "127.0.0.1", 0)
        address = addresses.join(*server.sockets[0].getsockname())
        async with peers(A, limits=PeerLimits(good_connection_ms=0)) as (a,):
            a.transport.send(address, heartbeat(1))
            await eventually(lambda: accepted, "the first connection")
            accepted[0].transport.abort()
            await eventually(lambda: len(accepted) == 2, "connected again without messages to send")
            assert a.lost == []
        for writer in accepted:
            writer.transport.abort()
        server.close()
        await server.wait_closed()

    uvloop.run(scenario())


def test_connection_to_former_address_of_server_is_closed(monkeypatch):
    monkeypatch.setattr(transport_module, "IDLE_US", 0)
    opened, closed = asyncio.Event(), asyncio.Event()

    async def read_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.set()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        closed.set()
        writer.transport.abort()

    async def scenario():
        former = await asyncio.start_server(read_all, "127.0.0.1", 0)
        async with former, peers(A) as (a,), peers(B) as (b,):
            a.transport.send(addresses.join(*former.sockets[0].getsockname()), heartbeat(1))
            await eventually(opened.is_set, "connected to the former address")
            a.transport.send(b.address, heartbeat(2))
            await eventually(closed.is_set, "the unused connection is closed")
            await eventually(lambda: b.rounds() == [2], "the new address is used")

    uvloop.run(scenario())


class GivenUp(asyncio.WriteTransport):
    """A connection that is established at its deadline: the loop closes it without notification."""

    closed = False

    def get_write_buffer_size(self):
        return 0

    def is_closing(self):
        return self.closed

    def abort(self):
        self.closed = True

    def write(self, data):
        pass

    def writelines(self, list_of_data):
        if self.closed:
            raise RuntimeError("the handler is closed")


def test_connection_completed_after_deadline_is_reopened(monkeypatch):
    async def scenario():
        async with peers(A, B, limits=PeerLimits(good_connection_ms=0)) as (a, b):
            loop = asyncio.get_running_loop()

            async def made_too_late(make, *, sock):
                sock.close()
                connection = GivenUp()
                make().connection_made(connection)
                connection.closed = True
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

    uvloop.run(scenario())


class Loop:
    """A loop whose `create_connection` is another one."""

    def __init__(self, loop, create_connection):
        self._loop = loop
        self.create_connection = create_connection

    def __getattr__(self, name):
        return getattr(self._loop, name)


def test_sending_resumes_after_the_peer_restarts():
    async def scenario():
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

    uvloop.run(scenario())  # the loop of the servers


@pytest.mark.parametrize(
    "chunks",
    [
        [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"],
        [b"\0" * 64],
        [HEADER.pack(b"NYPF", 3, 2, 0, 0xFFFF_FFFF, 0)],
        [encode_frame(heartbeat(1), CLUSTER)],  # no hello
        [hello(cluster="d" * 32)],
        [hello(to=A)],
        [hello(), encode_frame(heartbeat(1), CLUSTER)[:-1] + b"\xff"],
        [hello(), encode_frame(heartbeat(1, sender=ServerUuid("e" * 32)), CLUSTER)],
    ],
    ids=["http", "zeros", "length", "no hello", "cluster", "uuid", "checksum", "other sender"],
)
def test_malformed_bytes_close_only_their_connection(chunks, caplog):
    async def scenario():
        async with peers(A, B) as (a, b):
            a.transport.send(b.address, heartbeat(1))
            await eventually(lambda: b.rounds() == [1], "a good connection")
            await raw_connection(b.address, *chunks)
            a.transport.send(b.address, heartbeat(2))
            await eventually(lambda: b.rounds() == [1, 2], "the good connection still works")
            assert a.transport.dropped() == 0

    with caplog.at_level(logging.WARNING):
        uvloop.run(scenario())  # the loop of the servers
    assert "closed" in caplog.text


def test_connections_are_limited():
    async def scenario():
        async with peers(B, limits=PeerLimits(connections=1)) as (b,):
            host, port = addresses.parse(b.address)
            _, first = await asyncio.open_connection(host, port)
            first.write(hello() + encode_frame(heartbeat(1), CLUSTER))
            await eventually(lambda: b.rounds() == [1], "the first connection works")
            await raw_connection(b.address)
            first.write(encode_frame(heartbeat(2), CLUSTER))
            await eventually(lambda: b.rounds() == [1, 2], "the new round is delivered too")
            first.close()
            await first.wait_closed()

    uvloop.run(scenario())  # the loop of the servers


def test_unreachable_address_only_drops_its_frames(caplog):
    async def scenario():
        async with peers(A) as (a,):
            for number, address in enumerate(("127.0.0.1:1", "nonsense", f"{'x' * 80}.invalid:1")):
                a.transport.send(address, heartbeat(1))
                await drops(a, number + 1, address)

    uvloop.run(scenario())  # the loop of the servers
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_peer_port_binds_loopback_only_and_names_port_in_use():
    async def scenario():
        async with peers(A) as (a,):
            other = PeerTransport(system_env(GrpcRpc()), lambda: CLUSTER)
            with pytest.raises(InvalidArgument, match=f"cannot listen for peers on {a.address}"):
                await other.listen(a.address, B)
            with pytest.raises(Forbidden):
                await other.listen("0.0.0.0:0", B)

    uvloop.run(scenario())  # the loop of the servers
