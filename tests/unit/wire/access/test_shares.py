"""Shares of users: each has its own at every port, a refusal says what to do, and what ends makes room."""

import asyncio
import contextlib
import struct
from typing import Any

import grpc
import pytest
import uvloop
from prometheus_client import CollectorRegistry

from nyala.common import addresses
from nyala.common.errors import Throttled
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.clock import SystemClock
from nyala.security.identity import CALLER, PeerIdentity, user_name
from nyala.security.limits.caller_shares import TAILS_OF_USER, WAITS_OF_USER, CallerShares
from nyala.security.limits.shares import Shares
from nyala.security.principal import AccessRole, Principal
from nyala.tserver.feeds import change_waits
from nyala.tserver.flight_service import FlightService
from nyala.tserver.journals import service
from nyala.wire import flight, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import access_pb2, flight_pb2, journal_pb2, reads_pb2
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.rpc_metrics import RpcMetrics
from nyala.wire.server import GrpcServer
from nyala.wire.tls.join_port import MAX_OF_HOST, JoinPort
from tests.unit.security.certificates import server, user
from tests.unit.wire.support.wire_helpers import BATCH, BatchStore
from tests.waiting import eventually

LIMITS = RpcLimits(user_calls_max=3, user_streams_max=2)
READER, WRITER = AccessRole.READER, AccessRole.WRITER


def test_share_of_a_caller_leaves_that_of_others_and_one_use_always_has_room():
    refused: list[int] = []
    shares = Shares("open scans", 10, "user_scans_max", lambda: refused.append(1))
    with shares.hold("ann", 99), shares.hold("bob", 4), shares.hold("bob", 6):
        assert (shares.used("ann"), shares.used("bob")) == (99, 10)
        with pytest.raises(
            Throttled, match=r"bob has 10 open scans .* may have 10 \(user_scans_max\); retry"
        ):
            shares.take("bob", 1)
        with pytest.raises(Throttled, match="ann has 99"):
            shares.take("ann", 1)
        for _ in range(20):
            shares.take("")
    assert (shares.used("ann"), shares.used("bob"), len(refused)) == (0, 0, 2)
    shares.take("bob", 10)


@contextlib.asynccontextmanager
async def serving(store, metrics=None):
    grpc_server = GrpcServer(store.handlers(), "127.0.0.1:0", LIMITS, metrics, credentials=server())
    rpcs = {role: GrpcRpc(credentials=user(role)) for role in (READER, WRITER)}
    try:
        yield await grpc_server.start(), rpcs
    finally:
        for rpc in rpcs.values():
            await rpc.close()
        await grpc_server.stop(0)


class Waiting(BatchStore):
    """Answers that wait."""

    def __init__(self):
        super().__init__()
        self.open, self.waiting = asyncio.Event(), 0

    async def describe(self, request):
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        return pb.DescribeTableResponse()

    async def get(self, ticket):
        yield flight.schema_data(BATCH.schema)
        await self.describe(None)


def test_calls_of_one_user_leave_room_for_those_of_another():
    registry = CollectorRegistry()

    async def scenario():
        store = Waiting()
        async with serving(store, RpcMetrics(SystemClock(), registry)) as (address, rpcs):

            def call(role):
                asked = pb.DescribeTableRequest(name="ok")
                return asyncio.ensure_future(
                    rpcs[role].call(address, methods.DESCRIBE_TABLE, asked, timeout_ms=60_000)
                )

            first = [call(READER) for _ in range(3)]
            await eventually(lambda: store.waiting == 3, "they are being executed")
            with pytest.raises(Throttled, match="reader has 3 calls in flight"):
                await call(READER)
            other = call(WRITER)
            await eventually(lambda: store.waiting == 4, "the other user's call is being executed")
            store.open.set()
            await asyncio.gather(*first, other)
            await call(READER)

    uvloop.run(scenario())
    assert registry.get_sample_value("nyala_rpc_user_refusals_total", {"what": "calls"}) == 1


def test_streams_of_one_user_leave_room_for_those_of_another():
    async def scenario():
        store = Waiting()
        async with serving(store) as (address, rpcs):

            async def scan(role):
                async for _ in rpcs[role].stream(
                    address, methods.DO_GET, flight_pb2.Ticket(ticket=b"1")
                ):
                    pass

            first = [asyncio.ensure_future(scan(READER)) for _ in range(2)]
            await eventually(lambda: store.waiting == 2, "both are open")
            with pytest.raises(Throttled, match="reader has 2 connections to the stream port"):
                await scan(READER)
            other = asyncio.ensure_future(scan(WRITER))
            await eventually(lambda: store.waiting == 3, "the other user's stream is open")
            store.open.set()
            await asyncio.gather(*first, other)
            for _ in range(3):  # idle connections of the user make room
                await asyncio.gather(scan(READER), scan(READER))

    uvloop.run(scenario())


def test_scans_of_one_user_leave_room_for_those_of_another():
    def be(name):
        CALLER.set(PeerIdentity(Principal("a" * 32, READER, name), 1, 0, 1))

    class Scanners:
        async def run(self, token):
            yield flight.schema_data(BATCH.schema)
            await asyncio.Event().wait()

    async def scenario():
        shares = Shares("open scans", 2, "user_scans_max")
        service = FlightService(None, None, Scanners(), shares)  # type: ignore[arg-type]
        be("ann")
        scans = [service.do_get(flight_pb2.Ticket()) for _ in range(3)]
        await anext(scans[0])
        await anext(scans[1])
        with pytest.raises(Throttled, match="ann has 2 open scans"):
            await anext(scans[2])
        be("bob")
        other = service.do_get(flight_pb2.Ticket())
        await anext(other)
        for scan in (scans[0], scans[1], other):
            await scan.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert (shares.used("ann"), shares.used("bob")) == (0, 0)

    asyncio.run(scenario())


def test_caller_of_a_request_in_a_stream_is_known_to_its_handler_and_to_its_tasks():
    """Else the shares of users would not hold for what is called over streams."""

    class Store(BatchStore):
        def __init__(self):
            super().__init__()
            self.callers = []

        async def step(self, request):
            self.callers.append(user_name())
            return journal_pb2.JournalStepResponse()

        def look_up(self, request, answer):
            self.callers.append(user_name())
            answer(reads_pb2.GetResponse(request=request.request))

        def handlers(self):
            return {methods.JOURNAL_STEP: self.step, methods.GET: self.look_up}

    async def scenario():
        store = Store()
        async with serving(store) as (address, rpcs):
            await rpcs[WRITER].call(
                address, methods.JOURNAL_STEP, journal_pb2.JournalStepRequest(), timeout_ms=60_000
            )
            answers: asyncio.Queue[Any] = asyncio.Queue()
            stream = rpcs[READER].request_stream(address, methods.GET, answers.put_nowait)
            stream.send(reads_pb2.GetRequest(request=1))
            assert (await answers.get()).request == 1
            stream.abandon()
        assert store.callers == ["writer", "reader"]

    uvloop.run(scenario())


def test_waits_of_one_user_leave_room_for_those_of_others():
    shares = CallerShares(Options(), Metrics())
    for kept, most, all_waits in (
        (shares.waits, WAITS_OF_USER, change_waits.MAX_WAITS),
        (shares.tails, TAILS_OF_USER, service.MAX_WAITING),
    ):
        for _ in range(most):
            kept.take("ann")
        with pytest.raises(
            Throttled, match=r"ann has 7.. waits for changes of .* \(a fixed limit\)"
        ):
            kept.take("ann")
        assert all_waits - most > 200


def test_compressed_messages_are_refused_before_they_are_expanded():
    """Abuse case 14: a small message could have GiB."""

    async def scenario():
        store = BatchStore()
        grpc_server = GrpcServer(store.handlers(), "127.0.0.1:0")
        address = await grpc_server.start()
        raw = pb.DescribeTableRequest(name="ok", id="x" * 100_000).SerializeToString()
        try:
            for kind in (grpc.Compression.Gzip, grpc.Compression.Deflate):
                async with grpc.aio.insecure_channel(address, compression=kind) as channel:
                    call = channel.unary_unary(f"/{methods.DESCRIBE_TABLE.path}")
                    with pytest.raises(grpc.aio.AioRpcError) as refused:
                        await call(raw, timeout=30)
                    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        finally:
            await grpc_server.stop(0)

    uvloop.run(scenario())


def test_join_port_answers_others_while_one_address_has_its_share():
    async def scenario():
        async def join(_request):
            return access_pb2.JoinResponse()

        port = JoinPort(server(), join)
        host, number = addresses.parse(await port.listen("127.0.0.1:0"))
        tls = server().client_context()

        async def opened(source):
            return await asyncio.open_connection(host, number, ssl=tls, local_addr=(source, 0))

        try:
            silent = [await opened("127.0.0.1") for _ in range(MAX_OF_HOST)]
            reader, writer = await opened("127.0.0.1")
            (size,) = struct.unpack("<I", await reader.readexactly(4))
            answer = access_pb2.JoinResponse.FromString(await reader.readexactly(size))
            assert answer.error.code == "THROTTLED"
            writer.close()
            other, out = await opened("127.0.0.2")
            out.write(struct.pack("<I", 0))
            (size,) = struct.unpack("<I", await other.readexactly(4))
            assert access_pb2.JoinResponse.FromString(await other.readexactly(size)).ca
            for _, end in [*silent, (other, out)]:
                end.close()
        finally:
            await port.close()

    asyncio.run(scenario())
