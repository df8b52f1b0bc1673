"""Connections of the stream port that take further streams, after a stream without error."""

import asyncio
import contextlib

import pytest
import uvloop

from nyala.common.errors import NyalaError
from nyala.security import revocation
from nyala.security.credentials import Credentials
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole
from nyala.security.revocation import Revocation
from nyala.wire import connection, methods, stream_client, stream_server
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import reads_pb2 as pb
from nyala.wire.stream_client import StreamClient
from nyala.wire.stream_frames import StreamFrameKind, frame_head, open_message
from nyala.wire.stream_server import StreamServer
from nyala.wire.streams import idle
from tests.unit.security.certificates import server, user
from tests.unit.wire.support.wire_helpers import BatchStore
from tests.waiting import eventually, later

ADDRESS = "127.0.0.1:1"
DO_GET = methods.DO_GET


class Ports:
    """A stream server, and a client of it that counts its connections."""

    def __init__(self, own: Credentials | None, client: Credentials | None) -> None:
        limits = RpcLimits()
        self.server = StreamServer(BatchStore().handlers(), limits, None, own)
        self.client = StreamClient(limits, self.find, client)
        self.dialled = 0

    async def find(self, _address):
        return await self.server.find(pb.FindStreamsRequest())

    async def read(self, ticket=b"3"):
        """Read as many batches as the ticket says, after their schema; return their number."""
        request = flight_pb2.Ticket(ticket=ticket)
        return len([a async for a in self.client.stream(ADDRESS, DO_GET, request, 30_000)]) - 1


@pytest.fixture
def ports(monkeypatch):
    """Returns a context of a started server and its client."""

    @contextlib.asynccontextmanager
    async def started(own=None, client=None):
        made = Ports(own, client)

        async def dial(*args):
            made.dialled += 1
            return await connection.dial(*args)

        monkeypatch.setattr(stream_client, "dial", dial)
        await made.server.start("127.0.0.1")
        try:
            yield made
        finally:
            await made.client.close()
            await made.server.stop(0)

    return started


def secured():
    return server(), user(AccessRole.READER)


def test_streams_one_after_the_other_use_one_connection(ports):
    async def scenario():
        for credentials in (secured(), ()):  # with TLS, and without
            async with ports(*credentials) as made:
                for _ in range(5):
                    assert await made.read() == 3
                assert made.dialled == 1

    uvloop.run(scenario())


def test_streams_at_the_same_time_have_a_connection_each(ports):
    async def scenario():
        async with ports(*secured()) as made:
            for _ in range(3):
                answers = await asyncio.gather(*(made.read(b"%d" % n) for n in range(1, 5)))
                assert answers == [1, 2, 3, 4]
            assert made.dialled == 4

    uvloop.run(scenario())


def test_connection_of_a_stream_that_was_left_or_refused_is_not_used_again(ports):
    async def scenario():
        async with ports(*secured()) as made:
            stream = made.client.stream(ADDRESS, DO_GET, flight_pb2.Ticket(ticket=b"3"), None)
            await anext(stream)
            await stream.aclose()
            assert await made.read() == 3
            assert made.dialled == 2
            with pytest.raises(NyalaError):
                await made.read(b"no number")
            assert await made.read() == 3
            assert made.dialled == 3

    uvloop.run(scenario())


def test_connection_that_is_made_while_its_client_closes_takes_no_stream(ports, monkeypatch):
    async def scenario():
        answers: list[object] = []
        connected, closed = asyncio.Event(), asyncio.Event()

        async def dial(*args):
            end = await connection.dial(*args)
            connected.set()
            await closed.wait()
            return end

        async with ports() as made:
            monkeypatch.setattr(stream_client, "dial", dial)
            made.client.request_stream(ADDRESS, methods.CALL, answers.append)
            await connected.wait()
            await made.client.close()
            closed.set()
            await eventually(lambda: answers, "the stream has ended")
            assert "was closed by this side" in str(answers[0])

    uvloop.run(scenario())


def test_revoked_holder_of_an_open_connection_opens_no_stream(ports):
    async def scenario():
        own, reader = secured()
        async with ports(own, reader) as made:
            await made.read()
            serial = identity_of_pem(reader.pem.cert).serial
            own.revocations.replace([Revocation(revocation.id_of_serial(f"{serial:x}"), 1)])
            with pytest.raises(NyalaError):
                await made.read()

    uvloop.run(scenario())


def test_server_with_idle_connections_stops_at_once(ports, monkeypatch):
    for module in (idle, stream_server):
        monkeypatch.setattr(module, "IDLE_S", 3600.0)

    async def scenario():
        async with ports(*secured()) as made:
            await made.read()
            async with asyncio.timeout(later(20)):
                await made.server.stop(3_600_000)

    uvloop.run(scenario())


def test_idle_connections_make_room_for_others(ports, monkeypatch):
    monkeypatch.setattr(stream_server, "CONNECTIONS", 2)

    async def scenario():
        async with ports(*secured()) as made:
            await asyncio.gather(made.read(), made.read())
            other = StreamClient(RpcLimits(), made.find, user(AccessRole.READER))
            answers = other.stream(ADDRESS, DO_GET, flight_pb2.Ticket(ticket=b"3"), 30_000)
            assert len([a async for a in answers]) == 4
            await other.close()
            assert await made.read() == 3  # on the connection that is left, or a new one

    uvloop.run(scenario())


@pytest.mark.parametrize("end", [idle, stream_server], ids=["client", "server"])
def test_old_connection_is_replaced(ports, monkeypatch, end):
    monkeypatch.setattr(end, "AGE_S", 0.0)

    async def scenario():
        async with ports(*secured()) as made:
            await made.read()
            if end is stream_server:
                return await eventually(lambda: not made.server.idle, "no connection is idle")
            await made.read()
            assert made.dialled == 2

    uvloop.run(scenario())


@pytest.mark.parametrize("end", [idle, stream_server], ids=["client", "server"])
def test_connection_that_stays_idle_is_closed(ports, monkeypatch, end):
    for module in (idle, stream_server):
        monkeypatch.setattr(module, "IDLE_S", 0.01 if module is end else 3600.0)

    async def scenario():
        async with ports(*secured()) as made:
            await made.read()
            await eventually(lambda: not made.server.idle, "no connection is idle")
            assert await made.read() == 3
            assert made.dialled == 2

    uvloop.run(scenario())


def test_stream_that_is_opened_before_the_first_has_ended_is_not_served(ports):
    async def scenario():
        own, reader = secured()
        async with ports(own, reader) as made:
            found = await made.find(ADDRESS)
            context = reader.client_context()
            streams, writer = await asyncio.open_connection("127.0.0.1", found.port, ssl=context)
            opened = open_message(found.ticket, DO_GET.path)
            request = DO_GET.encode_request(flight_pb2.Ticket(ticket=b"1"))
            one = frame_head(StreamFrameKind.OPEN, opened, None)
            one += frame_head(StreamFrameKind.MESSAGE, request, None)
            writer.write(one + one)
            received, end = b"", frame_head(StreamFrameKind.END, b"", None)
            while end not in received:
                received += await streams.read(1 << 20)
            assert not made.server.idle  # the second stream was sent too early: this is closed
            writer.close()

    uvloop.run(scenario())
