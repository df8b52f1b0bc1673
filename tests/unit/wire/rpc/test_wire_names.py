"""A name that points to another machine after a failure: resolved again without a restart (S2.6).

Calls go through gRPC's own resolver and a name server of the test's, peers through the loop's.
"""

import asyncio
import ipaddress
import socket
from typing import Any

import pytest

from nyala.common import addresses
from nyala.common.errors import NyalaError
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import nyala_pb2
from nyala.wire.server import GrpcServer
from tests.unit.wire.support.peer_port import A, B, heartbeat, peers
from tests.unit.wire.support.wire_helpers import BatchStore
from tests.waiting import eventually

NAME = "master-c.test"
OLD, NEW = "127.0.0.1", "127.0.0.2"
OK = nyala_pb2.DescribeTableRequest(name="ok", id="1" * 32)


class NameServer(asyncio.DatagramProtocol):
    """Answers every query for an IPv4 address with one address without caching."""

    def __init__(self):
        self.points_to, self.asked = OLD, 0
        self.transport: Any = None

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, sender):
        self.asked += 1
        end = data.index(b"\0", 12) + 5
        wants_v4 = data[end - 4 : end - 2] == b"\0\1"
        head = data[:2] + b"\x81\x80\0\1" + (b"\0\1" if wants_v4 else b"\0\0") + bytes(4)
        answer = b"\xc0\x0c\0\1\0\1" + bytes(4) + b"\0\4"
        packed = ipaddress.IPv4Address(self.points_to).packed
        self.transport.sendto(head + data[12:end] + (answer + packed) * wants_v4, sender)


async def listening(host, port=0):
    server = GrpcServer(BatchStore().handlers(), f"{host}:{port}", RpcLimits())
    return server, await server.start()


@pytest.mark.row("S2.6")
def test_call_resolves_server_name_anew(monkeypatch):
    async def scenario():
        loop = asyncio.get_running_loop()
        end, names = await loop.create_datagram_endpoint(NameServer, local_addr=(OLD, 0))
        join = addresses.join
        resolver = end.get_extra_info("sockname")[1]

        def by_our_server(host, port):
            plain = join(host, port)
            return f"dns://127.0.0.1:{resolver}/{plain}" if host == NAME else plain

        monkeypatch.setattr(addresses, "join", by_our_server)
        rpc = GrpcRpc()
        old, address = await listening(OLD)
        port = addresses.parse(address)[1]

        async def answers():
            try:
                await rpc.call(f"{NAME}:{port}", methods.DESCRIBE_TABLE, OK, timeout_ms=1000)
            except NyalaError:
                return False
            return True

        assert await answers()
        await old.stop()
        assert not await answers()
        new, _ = await listening(NEW, port)
        names.points_to = NEW
        try:
            async with asyncio.timeout(15):
                while not await answers():
                    tick = asyncio.Event()
                    loop.call_later(0.05, tick.set)
                    await tick.wait()
        finally:
            await rpc.close()
            await new.stop()
            end.close()

    asyncio.run(scenario())


@pytest.mark.row("S2.6")
def test_peer_connection_resolves_server_name_anew(monkeypatch):
    points_to, real = [OLD], socket.getaddrinfo

    def resolve(host, *args, **more):
        return real(points_to[0] if host == NAME else host, *args, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)

    async def scenario():
        async with peers(A) as [a]:
            async with peers(B) as [b]:
                port = addresses.parse(b.address)[1]
                named = f"{NAME}:{port}"
                a.transport.send(named, heartbeat(1))
                await eventually(lambda: b.rounds() == [1], "the old machine receives messages")
            points_to[0] = NEW
            async with peers(B, address=f"{NEW}:{port}") as [b]:

                def received():
                    a.transport.send(named, heartbeat(2))
                    return 2 in b.rounds()

                await eventually(received, "the new machine receives messages")

    asyncio.run(scenario())
