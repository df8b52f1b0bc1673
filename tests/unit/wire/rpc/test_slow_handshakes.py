"""Slow TLS handshakes succeed, and an address that accepts no connection is left soon."""

import asyncio
import contextlib
import socket

import pytest
import uvloop

from nyala.common.errors import Unavailable
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import reads_pb2 as pb
from nyala.wire.server import GrpcServer
from nyala.wire.stream_client import StreamClient
from nyala.wire.stream_server import StreamServer
from tests.unit.security.certificates import server, user
from tests.unit.wire.support.wire_helpers import BatchStore
from tests.waiting import later

TICKET = flight_pb2.Ticket(ticket=b"3")
CONNECT_MS = 300
HELD_S = 2 * CONNECT_MS / 1000


@contextlib.asynccontextmanager
async def slow_network(port):
    """Yields the address of a proxy that delivers the first bytes of each client late."""

    open_, serving = [], []

    async def forward(reader, writer):
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
        writer.close()

    async def accept(reader, writer):
        open_.append(writer)
        if (task := asyncio.current_task()) is not None:
            serving.append(task)
        first, late = await reader.read(1 << 16), asyncio.Event()
        asyncio.get_running_loop().call_later(HELD_S, late.set)
        await late.wait()
        there, onward = await asyncio.open_connection("127.0.0.1", port)
        open_.append(onward)
        onward.write(first)
        await asyncio.gather(forward(reader, onward), forward(there, writer))

    proxy = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield proxy.sockets[0].getsockname()[1]
    finally:
        proxy.close()
        for writer in open_:
            writer.close()
        await asyncio.gather(*serving, *(w.wait_closed() for w in open_), return_exceptions=True)


async def batches(rpc, address):
    return (
        len([a async for a in rpc.stream(address, methods.DO_GET, TICKET, timeout_ms=30_000)]) - 1
    )


def test_handshake_with_the_stream_port_may_take_longer_than_connecting():
    async def scenario():
        limits = RpcLimits(connect_timeout_ms=CONNECT_MS)
        served = StreamServer(BatchStore().handlers(), limits, None, server())
        await served.start("127.0.0.1")
        found = await served.find(pb.FindStreamsRequest())
        async with slow_network(found.port) as port:

            async def find(_address):
                return pb.FindStreamsResponse(port=port, ticket=found.ticket)

            client = StreamClient(limits, find, user(AccessRole.READER))
            try:
                assert await batches(client, "127.0.0.1:1") == 3
            finally:
                await client.close()
                await served.stop(0)

    uvloop.run(scenario())


def test_look_up_of_the_stream_port_may_take_longer_than_connecting():
    async def scenario():
        limits = RpcLimits(connect_timeout_ms=CONNECT_MS)
        served = GrpcServer(BatchStore().handlers(), "127.0.0.1:0", limits, credentials=server())
        address = await served.start()
        client = GrpcRpc(limits, user(AccessRole.READER))
        try:
            async with slow_network(int(address.rpartition(":")[2])) as port:
                assert await batches(client, f"127.0.0.1:{port}") == 3
        finally:
            await client.close()
            await served.stop(0)

    uvloop.run(scenario())


def test_address_that_accepts_no_connection_is_left_long_before_a_handshake_would_end():
    async def scenario():
        client = GrpcRpc(
            RpcLimits(connect_timeout_ms=CONNECT_MS, handshake_ms=600_000), user(AccessRole.READER)
        )
        full = socket.create_server(("127.0.0.1", 0), backlog=0)
        waiting = [
            socket.socket() for _ in range(4)
        ]  # more than are queued: the kernel drops the others
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(full.getsockname())
        try:
            with pytest.raises(Unavailable, match="cannot be reached within 300 ms"):
                await asyncio.wait_for(
                    batches(client, f"127.0.0.1:{full.getsockname()[1]}"), later(20)
                )
        finally:
            await client.close()
            for sock in (full, *waiting):
                sock.close()

    uvloop.run(scenario())
