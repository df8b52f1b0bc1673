"""TLS on every port, over real loopback connections: who is accepted, what each may call, renewal."""

import asyncio
import contextlib
import shutil
import ssl

import grpc
import pyarrow as pa
import pyarrow.flight
import pytest
import uvloop

from nyala.common.errors import Forbidden, NyalaError, Unauthenticated, Unavailable
from nyala.common.ids import ServerUuid
from nyala.env.env import system_env
from nyala.raft.messages import PeerBatch
from nyala.security import issue
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.flight import FlightData
from nyala.wire.limits import RpcLimits
from nyala.wire.peers import PeerTransport
from nyala.wire.proto import flight_pb2, journal_pb2, nyala_pb2
from nyala.wire.server import GrpcServer
from nyala.wire.tls.problem import connection_problem
from tests.unit.security.certificates import authority, server, server_files, user, user_files
from tests.unit.wire.support.peer_port import CLUSTER, A, B, heartbeat
from tests.unit.wire.support.wire_helpers import BATCH, BatchStore
from tests.waiting import eventually, later

OK = nyala_pb2.DescribeTableRequest(name="ok", id="1" * 32)


async def _step(_request):
    return journal_pb2.JournalStepResponse()


async def _read(_request):
    return journal_pb2.JournalReadResponse()


HANDLERS = {methods.JOURNAL_STEP: _step, methods.JOURNAL_READ: _read}


@contextlib.asynccontextmanager
async def serving(credentials):
    grpc_server = GrpcServer(
        {**BatchStore().handlers(), **HANDLERS}, "127.0.0.1:0", credentials=credentials
    )
    try:
        yield await grpc_server.start()
    finally:
        await grpc_server.stop(0)


@contextlib.asynccontextmanager
async def calling(credentials):
    rpc = GrpcRpc(credentials=credentials)
    try:
        yield rpc
    finally:
        await rpc.close()


async def describe(rpc, address):
    return await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)


async def read_stream(rpc, address):
    ticket = flight_pb2.Ticket(ticket=b"3")
    return [answer async for answer in rpc.stream(address, methods.DO_GET, ticket)]


async def write_stream(rpc, address):
    async def requests():
        yield FlightData()

    return [answer async for answer in rpc.stream(address, methods.DO_PUT, requests())]


async def call_read(rpc, address):
    request = journal_pb2.JournalReadRequest()
    return await rpc.call(address, methods.JOURNAL_READ, request, timeout_ms=5_000)


async def call_step(rpc, address):
    request = journal_pb2.JournalStepRequest()
    return await rpc.call(address, methods.JOURNAL_STEP, request, timeout_ms=5_000)


def test_reader_reads_on_each_port_and_writes_on_none():
    async def scenario():
        async with serving(server()) as address, calling(user(AccessRole.READER)) as rpc:
            assert (await describe(rpc, address)).id == OK.id
            assert len(await read_stream(rpc, address)) > 1
            assert await call_read(rpc, address) == journal_pb2.JournalReadResponse()
            for refused in (write_stream, call_step):
                with pytest.raises(Forbidden, match="reader has the role reader"):
                    await refused(rpc, address)

    uvloop.run(scenario())


def test_writer_writes():
    async def scenario():
        async with serving(server()) as address, calling(user(AccessRole.WRITER)) as rpc:
            assert await call_step(rpc, address) == journal_pb2.JournalStepResponse()
            with contextlib.suppress(NyalaError):  # the message is not a batch
                await write_stream(rpc, address)

    uvloop.run(scenario())


def test_refusal_reaches_plain_grpc_calls_too():
    """Streams and their calls may also arrive on the gRPC port."""

    async def scenario():
        async with serving(server()) as address, calling(user(AccessRole.READER)) as rpc:
            files = user_files(AccessRole.READER)
            pem = Credentials(files).pem
            tls = grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)
            async with grpc.aio.secure_channel(address, tls) as channel:
                step = channel.unary_unary(f"/{methods.JOURNAL_STEP.path}")
                with pytest.raises(grpc.aio.AioRpcError, match="reader has the role reader"):
                    await step(b"", timeout=5)
            assert await describe(rpc, address)

    uvloop.run(scenario())


def test_plain_flight_client_with_a_certificate_reads():
    files = user_files(AccessRole.READER)

    def plain(address):
        pem = Credentials(files).pem
        with pyarrow.flight.connect(
            f"grpc+tls://{address}", tls_root_certs=pem.ca, cert_chain=pem.cert, private_key=pem.key
        ) as client:
            info = client.get_flight_info(pyarrow.flight.FlightDescriptor.for_path("t"))
            return client.do_get(info.endpoints[0].ticket).read_all()

    async def scenario():
        async with serving(server()) as address:
            return await asyncio.to_thread(plain, address)

    assert uvloop.run(scenario()).equals(pa.Table.from_batches([BATCH] * 5))


async def said_of(address, credentials):
    """Return why a client gets no answer at an address, as text."""
    found = await connection_problem(address, credentials)
    assert isinstance(found, Unauthenticated), found
    return found.message


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (lambda: None, "accepts encrypted connections only"),
        (lambda: user(AccessRole.ADMIN, "other"), "its certificate does not fit"),
    ],
    ids=["no certificate", "other authority"],
)
def test_stranger_reaches_no_method_and_learns_why(who, why):
    async def scenario():
        async with serving(server()) as address, calling(who()) as rpc:
            with pytest.raises(Unavailable):
                await describe(rpc, address)
            assert why in await said_of(address, who())

    uvloop.run(scenario())


def test_tls_client_without_certificate_reaches_not_even_the_health_service():
    tls = grpc.ssl_channel_credentials(Credentials(server_files()).pem.ca)

    async def scenario():
        async with serving(server()) as address, grpc.aio.secure_channel(address, tls) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await check(b"", timeout=2)
            assert refused.value.code() is not grpc.StatusCode.OK

    uvloop.run(scenario())


def test_certificate_of_another_authority_is_refused_by_the_server(tmp_path):
    """A client that accepts the server, and is not accepted by it."""
    cert = user_files(AccessRole.ADMIN, "other")
    context = ssl.create_default_context(cafile=server_files().ca)
    context.load_cert_chain(cert.cert, cert.key)

    async def scenario():
        async with serving(server()) as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
            with contextlib.suppress(OSError):  # an alert, or the connection ends
                assert await reader.read(1) == b""
            writer.close()

    asyncio.run(scenario())


def test_client_with_certificate_says_that_the_server_has_none():
    async def scenario():
        async with serving(None) as address, calling(user(AccessRole.READER)) as rpc:
            with pytest.raises(Unavailable):
                await describe(rpc, address)
            assert "it does not use TLS" in await said_of(address, user(AccessRole.READER))
            assert await connection_problem(address, None) is None

    uvloop.run(scenario())


def test_certificate_for_another_host_is_not_accepted(tmp_path):
    files = issue.server(authority(), str(tmp_path), ["db1.example"])

    async def scenario():
        async with serving(Credentials(files)) as address, calling(user(AccessRole.READER)) as rpc:
            with pytest.raises(Unavailable):
                await describe(rpc, address)
            problem = await said_of(address, user(AccessRole.READER))
            assert "does not name the host 127.0.0.1" in problem

    uvloop.run(scenario())


def test_replaced_certificate_is_used_for_new_connections_without_a_restart(tmp_path):
    first = issue.server(authority(), str(tmp_path), ["127.0.0.1"])
    files = CredentialFiles(first.ca, first.cert, first.key)

    async def served_certificate(address):
        context = Credentials(user_files(AccessRole.READER)).client_context()
        host, port = address.split(":")
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        try:
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.close()

    async def scenario():
        async with serving(Credentials(files)) as address:
            before = await served_certificate(address)
            assert await served_certificate(address) == before
            new = issue.server(authority(), str(tmp_path / "new"), ["127.0.0.1"])
            shutil.copy(new.key, files.key)
            shutil.copy(new.cert, files.cert)
            assert await served_certificate(address) != before
            async with calling(user(AccessRole.READER)) as rpc:
                assert (await describe(rpc, address)).id == OK.id

    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def peer(uuid, credentials):
    rpc = GrpcRpc()
    env = system_env(rpc)
    transport = PeerTransport(env, lambda: CLUSTER, credentials=credentials)
    got: list[PeerBatch] = []
    transport.receive(got.append, lambda _server: None)
    try:
        yield transport, await transport.listen("127.0.0.1:0", ServerUuid(uuid)), got
    finally:
        await transport.close()
        await env.tasks.close()
        await rpc.close()


@pytest.mark.parametrize(
    ("sender", "accepted"),
    [
        (server, True),
        (lambda: user(AccessRole.ADMIN), False),
        (lambda: server("other"), False),
        (lambda: None, False),
    ],
    ids=["server", "administrator", "server of another cluster", "no certificate"],
)
def test_peer_port_takes_frames_of_servers_only(sender, accepted):
    async def scenario():
        async with (
            peer(A, sender()) as (one, _, _),
            peer(B, server()) as (_, address, got),
            peer(A, server()) as (good, _, _),
        ):
            one.send(address, heartbeat(1))
            if not accepted:  # what a good server sends later arrives, and this did not
                good.send(address, heartbeat(2))
            await eventually(lambda: bool(got), "a frame has arrived")
            rounds = [m.round for batch in got for _, m in batch.messages]
            assert rounds == [1 if accepted else 2]

    uvloop.run(scenario())


def test_client_that_begins_no_handshake_is_disconnected():
    """Abuse case 17, for the port of gRPC: TCP without TLS."""

    async def scenario():
        limits = RpcLimits(handshake_ms=200)
        grpc_server = GrpcServer(
            BatchStore().handlers(), "127.0.0.1:0", limits, credentials=server()
        )
        address = await grpc_server.start()
        try:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), later(10)) == b""
            writer.close()
        finally:
            await grpc_server.stop(0)

    asyncio.run(scenario())


def test_server_with_credentials_binds_any_address():
    async def scenario():
        grpc_server = GrpcServer(BatchStore().handlers(), "0.0.0.0:0", credentials=server())
        address = await grpc_server.start()
        try:
            async with calling(user(AccessRole.READER)) as rpc:
                port = address.rpartition(":")[2]
                assert (await describe(rpc, f"127.0.0.1:{port}")).id == OK.id
        finally:
            await grpc_server.stop(0)

    uvloop.run(scenario())
