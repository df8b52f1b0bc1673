"""The public port over a real loopback connection: its client, a plain Flight client, malformed requests."""

import asyncio
import random
import socket
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.flight
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client import CollectorRegistry, generate_latest

from nyala.common import addresses
from nyala.common.errors import (
    Forbidden,
    InvalidArgument,
    NyalaError,
    TimedOut,
    TooLarge,
    Unavailable,
)
from nyala.env.clock import SystemClock
from nyala.wire import flight, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.flight import FlightData
from nyala.wire.limits import RpcLimits
from nyala.wire.proto import flight_pb2, nyala_pb2
from nyala.wire.rpc_metrics import RpcMetrics
from nyala.wire.server import GrpcServer
from tests.unit.wire.support.wire_helpers import BATCH, BatchStore, puts, served
from tests.waiting import eventually

OK = nyala_pb2.DescribeTableRequest(name="ok", id="1" * 32)


def ticket(batches):
    return flight_pb2.Ticket(ticket=b"%d" % batches)


async def describe(rpc, address, **fields):
    request = nyala_pb2.DescribeTableRequest(**fields)
    return await rpc.call(address, methods.DESCRIBE_TABLE, request, timeout_ms=5000)


async def alive(rpc, address):
    answer = await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5000)
    return answer.id == OK.id


def test_plain_flight_client_discovers_reads_and_writes_tables():
    store = BatchStore()

    def plain(address):
        with pyarrow.flight.connect(f"grpc://{address}") as client:
            info = client.get_flight_info(pyarrow.flight.FlightDescriptor.for_path("t"))
            table = client.do_get(info.endpoints[0].ticket).read_all()
            writer, results = client.do_put(info.descriptor, BATCH.schema)
            with writer:
                writer.write_with_metadata(BATCH, b"one")
                return info.schema, table, results.read().to_pybytes()

    async def scenario():
        async with served(store) as (_, address):
            return await asyncio.to_thread(plain, address)

    schema, table, result = uvloop.run(scenario())
    assert schema == BATCH.schema
    assert table.equals(pa.Table.from_batches([BATCH] * 5))
    assert result == b"one+1000"
    assert [b.equals(BATCH) for b in store.kept] == [True]


def test_plain_flight_client_receives_error_details():
    def plain(address):
        with pyarrow.flight.connect(f"grpc://{address}") as client:
            client.get_flight_info(pyarrow.flight.FlightDescriptor.for_path("nope"))

    async def scenario():
        async with served(BatchStore()) as (_, address):
            await asyncio.to_thread(plain, address)

    with pytest.raises(pa.ArrowKeyError, match=r"no table 'nope'; the tables are: t \[NOT_FOUND\]"):
        uvloop.run(scenario())


def test_streams_both_ways_and_their_order():
    async def scenario():
        async with served(BatchStore()) as (rpc, address):
            got = [d async for d in rpc.stream(address, methods.DO_GET, ticket(3))]
            assert bytes(got[0].app_metadata) == b"header"
            assert [bytes(d.app_metadata) for d in got[1:]] == [b"0", b"1", b"2"]
            schema = flight.read_schema(got[0].header)
            assert all(flight.read_batch(schema, d.header, d.body).equals(BATCH) for d in got[1:])
            sent = puts(
                flight.schema_data(BATCH.schema),
                *(flight.batch_data(BATCH, b"%d" % n) for n in range(3)),
            )
            results = [r.app_metadata async for r in rpc.stream(address, methods.DO_PUT, sent)]
            assert results == [b"0+1000", b"1+1000", b"2+1000"]

    uvloop.run(scenario())


def test_leaving_stream_early_cancels_server_handler():
    store = BatchStore()

    async def scenario():
        async with served(store) as (rpc, address):
            stream: Any = rpc.stream(address, methods.DO_GET, ticket(100_000))
            async for _ in stream:
                break
            await stream.aclose()
            await eventually(lambda: store.closed_streams == 1, "the handler's iterator is closed")
            assert await alive(rpc, address)

    uvloop.run(scenario())


def test_failing_request_iterator_fails_stream_with_its_error():
    async def broken():
        yield flight.schema_data(BATCH.schema)
        raise InvalidArgument("the rows ran out")

    async def scenario():
        async with served(BatchStore()) as (rpc, address):
            with pytest.raises(InvalidArgument, match="the rows ran out"):
                async for _ in rpc.stream(address, methods.DO_PUT, broken()):
                    pass

    uvloop.run(scenario())


def test_internal_error_text_is_hidden_and_server_keeps_running(caplog):
    async def scenario():
        async with served(BatchStore()) as (rpc, address):
            with pytest.raises(NyalaError) as caught:
                await describe(rpc, address, name="crash")
            assert caught.value.code == "INTERNAL"
            assert "secret" not in str(caught.value)
            assert await alive(rpc, address)

    uvloop.run(scenario())
    assert "the secret inside" in caplog.text


def test_oversized_messages_are_refused_on_every_side():
    small, limit = RpcLimits(message_bytes=1 << 20), str(1 << 20)
    big = FlightData(b"", bytes(2 << 20))

    async def scenario():
        store = BatchStore()
        async with served(store, small) as (rpc, address):
            with pytest.raises(TooLarge, match="send or ask for smaller batches") as caught:
                async for _ in rpc.stream(address, methods.DO_PUT, puts(big)):
                    pass
            assert caught.value.details["limit"] == limit  # refused by the server
            with pytest.raises(TooLarge, match="request less data"):
                await describe(rpc, address, name="big")
            with pytest.raises(TooLarge) as caught:
                await describe(rpc, address, id="x" * (2 << 20))
            assert caught.value.details["limit"] == limit
            careful = GrpcRpc(small)
            with pytest.raises(TooLarge, match="send smaller batches"):
                async for _ in careful.stream(address, methods.DO_PUT, puts(big)):
                    pass
            await careful.close()
            assert store.kept == []
            assert await alive(rpc, address)

    uvloop.run(scenario())


def test_unknown_method_is_reported_as_unimplemented():
    async def scenario():
        async with served(BatchStore()) as (rpc, address):
            with pytest.raises(
                InvalidArgument, match=r"does not have the method nyala\.v1\.MasterService"
            ):
                await rpc.call(
                    address, methods.MASTER_STATUS, nyala_pb2.MasterStatusRequest(), timeout_ms=5000
                )

    uvloop.run(scenario())


def test_unreachable_and_invalid_addresses_raise_errors():
    async def scenario():
        rpc = GrpcRpc()
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
            dead = addresses.join(*taken.getsockname())
            with pytest.raises(Unavailable, match=dead):
                await rpc.call(dead, methods.DESCRIBE_TABLE, OK, timeout_ms=20_000)
            with pytest.raises(Unavailable):
                async for _ in rpc.stream(dead, methods.DO_GET, ticket(1)):
                    pass
            with pytest.raises(Unavailable):
                async for _ in rpc.stream(dead, methods.DO_PUT, puts(FlightData(b"x"))):
                    pass
        with pytest.raises(InvalidArgument, match="write host:port"):
            await rpc.call("nonsense", methods.DESCRIBE_TABLE, OK, timeout_ms=1000)
        await rpc.close()
        with pytest.raises(Unavailable, match="closed by this side"):
            await rpc.call(dead, methods.DESCRIBE_TABLE, OK, timeout_ms=1000)

    uvloop.run(scenario())


def test_unresponsive_server_times_out():
    async def scenario():
        asked = []

        async def stuck(request):
            asked.append(request)
            await asyncio.get_running_loop().create_future()

        server = GrpcServer({methods.DESCRIBE_TABLE: stuck}, "127.0.0.1:0")
        address, rpc = await server.start(), GrpcRpc()
        with pytest.raises(TimedOut, match=address):
            await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=500)
        waiting = asyncio.ensure_future(
            rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=60_000)
        )
        await eventually(lambda: len(asked) == 2, "the server has both requests")
        await rpc.close()
        with pytest.raises(Unavailable):
            await waiting
        await server.stop(0)

    uvloop.run(scenario())


def test_only_loopback_can_be_bound():
    for address in ("0.0.0.0:0", "192.168.1.1:7051", "[::]:7051", "example.org:7051", "10.0.0.1:0"):
        with pytest.raises(Forbidden, match="without certificates"):
            uvloop.run(GrpcServer({}, address).start())
    for address in ("7051", "127.0.0.1:", "127.0.0.1:99999", ":7051", "::1:7051", "a b:1", "h:１"):
        with pytest.raises(InvalidArgument):
            uvloop.run(GrpcServer({}, address).start())
    for resolved in (addresses.require_loopback, addresses.to_bind):
        assert resolved("localhost:7") == ("127.0.0.1", 7)
        assert resolved("[::1]:7") == ("::1", 7)


def test_name_is_bound_only_if_all_its_addresses_are_loopback(monkeypatch):
    known = {"own.test": ["127.0.0.3"], "mixed.test": ["127.0.0.3", "192.0.2.1"]}

    def resolve(host, port, **_more):
        if host not in known:
            raise socket.gaierror("no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (a, port)) for a in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert addresses.to_bind("own.test:7") == ("127.0.0.3", 7)
    for name in ("mixed.test", "unknown.test"):
        with pytest.raises(Forbidden, match="without certificates"):
            addresses.to_bind(f"{name}:7")
    with pytest.raises(Forbidden):
        addresses.require_loopback("own.test:7")


def test_port_in_use_is_named_without_lines_of_grpc(capfd):
    """gRPC may print a line about a connection of an earlier test, or about the end of this server."""

    async def scenario():
        async with served(BatchStore()) as (rpc, address):
            capfd.readouterr()
            with pytest.raises(
                InvalidArgument, match=f"cannot listen on {address}: Address already in use"
            ):
                await GrpcServer(BatchStore().handlers(), address).start()
            assert await alive(rpc, address)
            assert [n for n in capfd.readouterr().err.splitlines() if address in n] == []

    uvloop.run(scenario())


def test_grpc_refuses_a_port_in_use():
    """Two servers that start at the same time may both find the port free before gRPC takes it."""

    async def scenario():
        async with served(BatchStore()) as (_, address):
            second = grpc.aio.server(options=RpcLimits().server_options())
            with pytest.raises(RuntimeError, match="Failed to bind"):
                second.add_insecure_port(address)

    uvloop.run(scenario())


def test_health_reflection_and_metrics():
    registry = CollectorRegistry()

    async def scenario():
        server = GrpcServer(
            BatchStore().handlers(), "127.0.0.1:0", metrics=RpcMetrics(SystemClock(), registry)
        )
        address, rpc = await server.start(), GrpcRpc()
        async with grpc.aio.insecure_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel)
            states = health_pb2.HealthCheckResponse
            assert (await health.Check(health_pb2.HealthCheckRequest())).status == states.SERVING
            await server.set_serving(False)
            named = health_pb2.HealthCheckRequest(service="nyala.v1.MasterService")
            assert (await health.Check(named)).status == states.NOT_SERVING
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            listing = stub.ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")])
            )
            names = [s.name async for r in listing for s in r.list_services_response.service]
            assert {"nyala.v1.MasterService", "arrow.flight.protocol.FlightService"} <= set(names)
        assert await alive(rpc, address)
        with pytest.raises(NyalaError):
            await describe(rpc, address, name="NOT_LEADER")
        await rpc.close()
        await server.stop(0)

    uvloop.run(scenario())
    text = generate_latest(registry).decode()
    method = "nyala.v1.MasterService/DescribeTable"
    assert f'nyala_rpc_calls_total{{code="OK",method="{method}"}} 1.0' in text
    assert f'nyala_rpc_calls_total{{code="NOT_LEADER",method="{method}"}} 1.0' in text
    assert "nyala_rpc_active 0.0" in text


def test_message_of_a_million_fields_is_answered_and_the_server_serves_others():
    """Abuse case 13: unknown fields, and one field a million times."""

    async def scenario():
        async with (
            served(BatchStore()) as (rpc, address),
            grpc.aio.insecure_channel(address) as channel,
        ):
            unary = channel.unary_unary(f"/{methods.DESCRIBE_TABLE.path}")
            for field in (b"\x78\x01", b"\x0a\x01a"):
                raw = field * 1_000_000 + OK.SerializeToString()
                answer = nyala_pb2.DescribeTableResponse.FromString(await unary(raw))
                assert answer.id == OK.id
            assert await alive(rpc, address)

    uvloop.run(scenario())


def test_malformed_bytes_on_any_method_leave_server_and_data_intact():
    rng = random.Random(99)
    good = [
        flight.encode(d)
        for d in (flight.schema_data(BATCH.schema), flight.batch_data(BATCH.slice(0, 50)))
    ]

    async def put_raw(channel, messages):
        call = channel.stream_stream(f"/{methods.DO_PUT.path}")()
        try:
            for raw in messages:
                await call.write(raw)
            await call.done_writing()
            return [r async for r in call]
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return await call.code()

    async def scenario():
        store = BatchStore()
        async with served(store) as (rpc, address), grpc.aio.insecure_channel(address) as channel:
            for _ in range(120):
                damaged = bytearray(good[1])
                for _ in range(rng.randint(1, 6)):
                    damaged[rng.randrange(len(damaged))] = rng.randrange(256)
                await put_raw(channel, [good[0], bytes(damaged)])
            for batch in store.kept:  # the stored batches are valid
                batch.validate(full=True)
            kept = len(store.kept)
            refused = await put_raw(channel, [good[0], b"\x12\xff\xff"])
            assert refused is grpc.StatusCode.INVALID_ARGUMENT
            unary = channel.unary_unary(f"/{methods.DESCRIBE_TABLE.path}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await unary(b"\xff\xff")
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await alive(rpc, address)
            assert len(store.kept) == kept

    uvloop.run(scenario())
