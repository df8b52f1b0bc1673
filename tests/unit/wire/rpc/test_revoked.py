"""Revoked certificates on each port; certificates on the peer port, and the servers that they name."""

import asyncio
import contextlib
import shutil
import ssl
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
import uvloop

from nyala.common.errors import Forbidden, NyalaError, Unauthenticated, Unavailable
from nyala.common.ids import ServerUuid
from nyala.env.env import system_env
from nyala.raft.messages import PeerBatch
from nyala.security import issue, revocation
from nyala.security.authority import load
from nyala.security.credentials import Credentials
from nyala.security.identity import CALLER, identity_of_pem
from nyala.security.principal import AccessRole, server_name
from nyala.security.revocation import Revocation
from nyala.security.signing_request import new_request, public_key_of
from nyala.wire import connection, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.frames import encode_frame
from nyala.wire.peers import PeerTransport
from nyala.wire.proto import flight_pb2, nyala_pb2
from nyala.wire.server import GrpcServer
from tests.unit.security.certificates import authority, server, server_files, user
from tests.unit.wire.support.peer_port import CLUSTER, A, B, heartbeat, hello
from tests.unit.wire.support.wire_helpers import BatchStore
from tests.waiting import eventually

OK = nyala_pb2.DescribeTableRequest(name="ok", id="1" * 32)


def revoke(credentials, revoked):
    serial = identity_of_pem(revoked.pem.cert).serial
    credentials.revocations.replace([Revocation(revocation.id_of_serial(f"{serial:x}"), 1)])


def of_server(uuid):
    folder = str(Path(tempfile.mkdtemp(prefix="nyala-test-"), "server"))
    hosts, name = ["127.0.0.1"], server_name("tserver", uuid)
    return Credentials(issue.server(authority(), folder, hosts, name=name))


async def _drain(stream):
    async for _ in stream:
        pass


def test_revoked_certificate_is_refused_by_the_next_call_and_its_streams_end():
    async def scenario():
        own, reader = server(), user(AccessRole.READER)
        grpc_server = GrpcServer(BatchStore().handlers(), "127.0.0.1:0", credentials=own)
        rpc, address = GrpcRpc(credentials=reader), await grpc_server.start()
        try:
            await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            ticket = flight_pb2.Ticket(ticket=b"1000000000")
            stream = rpc.stream(address, methods.DO_GET, ticket)
            assert await anext(stream)
            revoke(own, reader)
            with pytest.raises(NyalaError):
                await asyncio.wait_for(_drain(stream), 20)
            with pytest.raises(Unauthenticated, match="was revoked"):
                await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            with pytest.raises((Unauthenticated, Unavailable)):
                await anext(rpc.stream(address, methods.DO_GET, ticket))
        finally:
            await rpc.close()
            await grpc_server.stop(0)

    uvloop.run(scenario())


def test_heartbeat_over_a_stream_has_its_caller_until_the_certificate_is_revoked():
    callers: list[str] = []

    async def heartbeat(_request):
        caller = CALLER.get()
        assert caller is not None
        callers.append(str(caller.principal.server_uuid))
        return nyala_pb2.HeartbeatResponse()

    async def scenario():
        own = server()
        grpc_server = GrpcServer({methods.HEARTBEAT: heartbeat}, "127.0.0.1:0", credentials=own)
        address, clients = await grpc_server.start(), [of_server(A), of_server(B)]
        rpcs = [GrpcRpc(credentials=c) for c in (*clients, user(AccessRole.ADMIN))]

        async def send(rpc):
            await rpc.call(
                address, methods.HEARTBEAT, nyala_pb2.HeartbeatRequest(), timeout_ms=20_000
            )

        try:
            for rpc in (rpcs[0], rpcs[1], rpcs[0]):
                await send(rpc)
            with pytest.raises(Forbidden):
                await send(rpcs[2])
            revoke(own, clients[0])
            with pytest.raises((Unauthenticated, Unavailable)):
                await send(rpcs[0])
            with pytest.raises((Unauthenticated, Unavailable)):
                await send(rpcs[0])
            await send(rpcs[1])
        finally:
            for rpc in rpcs:
                await rpc.close()
            await grpc_server.stop(0)

    uvloop.run(scenario())
    assert callers == [A, B, A, B]


def test_expired_certificate_is_good_for_no_further_call_and_its_streams_end(monkeypatch):
    """The handshake checks the times of a certificate once, and connections stay open for long."""
    monkeypatch.setattr(connection, "EXPIRED_S", 0.05)
    now_s = [time.time()]

    async def scenario():
        own, reader = Credentials(server_files(), lambda: now_s[0]), user(AccessRole.READER)
        grpc_server = GrpcServer(BatchStore().handlers(), "127.0.0.1:0", credentials=own)
        rpc, address = GrpcRpc(credentials=reader), await grpc_server.start()
        credentials = grpc.ssl_channel_credentials(reader.pem.ca, reader.pem.key, reader.pem.cert)
        channel = grpc.aio.secure_channel(address, credentials)
        plain = channel.unary_stream(f"/{methods.DO_GET.path}")
        try:
            await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            ticket = flight_pb2.Ticket(ticket=b"1000000000")
            stream = rpc.stream(address, methods.DO_GET, ticket)
            of_grpc = aiter(plain(ticket.SerializeToString()))
            assert await anext(stream)
            assert await anext(of_grpc)
            now_s[0] = identity_of_pem(reader.pem.cert).ends_s
            with pytest.raises(NyalaError):
                await asyncio.wait_for(_drain(stream), 20)
            with pytest.raises(grpc.aio.AioRpcError, match="has expired; log in again"):
                await asyncio.wait_for(_drain(of_grpc), 20)
            with pytest.raises(Unauthenticated, match="has expired; log in again"):
                await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
        finally:
            await channel.close()
            await rpc.close()
            await grpc_server.stop(0)

    uvloop.run(scenario())


@contextlib.asynccontextmanager
async def transports(*credentials, audit=None):
    """One transport for each credentials; the last one listens, as B."""
    rpc = GrpcRpc()
    env = system_env(rpc)
    made = [PeerTransport(env, lambda: CLUSTER, credentials=c, audit=audit) for c in credentials]
    got: list[PeerBatch] = []
    try:
        address = await made[-1].listen("127.0.0.1:0", B)
        made[-1].receive(got.append, lambda uuid: None)
        yield made, address, got
    finally:
        for transport in made:
            await transport.close()
        await env.tasks.close()
        await rpc.close()


def rounds(got):
    return [m.round for batch in got for _, m in batch.messages]


def test_frame_counts_only_from_the_server_of_the_certificate():
    other = ServerUuid("e" * 32)

    async def scenario():
        async with transports(of_server(other), of_server(A), of_server(B)) as (made, address, got):
            made[0].send(address, heartbeat(1))  # from A, it says
            made[1].send(address, heartbeat(2))
            await eventually(lambda: bool(got), "a frame of A itself")
            assert rounds(got) == [2]

    uvloop.run(scenario())


class Lines:
    """An audit log in memory."""

    def __init__(self):
        self.found = []

    async def note(self, event, **fields):
        self.found.append((event, fields["who"], fields["method"], fields.get("code")))


def test_refused_peers_have_one_line_each_in_the_audit_log_and_are_counted_then():
    other, audit = ServerUuid("e" * 32), Lines()
    first, second = of_server(other), user(AccessRole.ADMIN)

    async def scenario():
        async with transports(first, second, of_server(B), audit=audit) as (made, address, got):
            for sender in made[:2]:

                def dropped(sender=sender):
                    sender.send(address, heartbeat(1))  # from A, it says
                    return sender.dropped() > 3

                await eventually(dropped, "connections are refused again and again")
            assert got == []

    uvloop.run(scenario())
    assert audit.found == [
        ("refused", f"{first.principal}: certificate", "peer port", "CORRUPT"),
        ("refused", f"{second.principal}: no server", "peer port", "FORBIDDEN"),
    ]


def test_revoked_server_loses_its_connections_to_the_peer_port():
    async def scenario():
        revoked, own = of_server(A), of_server(B)
        async with transports(revoked, own) as ((sender, _), address, got):
            sender.send(address, heartbeat(1))
            await eventually(lambda: len(got) == 1, "a frame")
            revoke(own, revoked)

            def dropped():
                sender.send(address, heartbeat(2))
                return sender.dropped() > 0

            await eventually(dropped, "the connection is closed, and not accepted again")
            assert rounds(got) == [1]

    uvloop.run(scenario())


def test_server_does_not_send_to_a_revoked_one():
    async def scenario():
        own, revoked = of_server(A), of_server(B)
        async with transports(own, revoked) as ((sender, _), address, got):
            revoke(own, revoked)
            sender.send(address, heartbeat(1))
            await eventually(lambda: sender.dropped() == 1, "the frame is dropped")
            assert got == []

    uvloop.run(scenario())


def _chain(folder, role=AccessRole.SERVER, valid_s=3_600, name="one"):
    """Write certificate and key of A to a file, as no command of nyala would; return its path."""
    key, request = new_request()
    valid, who = timedelta(seconds=valid_s), server_name("tserver", A)
    signed = load(authority(name)).sign(public_key_of(request), role, who, ["127.0.0.1"], valid)
    path = folder / "chain.pem"
    path.write_bytes(signed + key)
    return str(path)


@pytest.mark.parametrize(
    ("wanted", "accepted"),
    [
        ({}, True),
        (None, False),
        ({"name": "other"}, False),
        ({"valid_s": -60}, False),
        ({"valid_s": 7_200, "early_s": 3_600}, False),
        ({"role": AccessRole.ADMIN}, False),
    ],
    ids=["valid", "no certificate", "other authority", "expired", "not valid yet", "of a user"],
)
def test_frame_counts_only_with_a_valid_certificate_of_a_server(
    tmp_path, monkeypatch, wanted, accepted
):
    own = of_server(B)
    context = ssl.create_default_context(cafile=own.files.ca)
    if wanted is not None:
        early_s = wanted.pop("early_s", 0)
        if early_s:
            monkeypatch.setattr("nyala.security.authority.BACKDATED", timedelta(seconds=-early_s))
        context.load_cert_chain(_chain(tmp_path, **wanted))

    async def scenario():
        async with transports(own) as (_, address, got):
            host, port = address.split(":")
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
                writer.write(hello() + encode_frame(heartbeat(1), CLUSTER))
                if accepted:
                    await eventually(lambda: bool(got), "a frame")
                else:
                    assert await asyncio.wait_for(reader.read(), 20) == b""
                writer.close()
            assert bool(got) is accepted

    uvloop.run(scenario())


def test_open_channels_are_replaced_after_the_certificate_was_renewed():
    """A channel connects again with the certificate with which it was opened, which may have ended.

    Nothing but the files says so: clients with files of their own have no upkeep.
    """

    async def scenario():
        own, caller = server(), of_server(A)
        grpc_server = GrpcServer(BatchStore().handlers(), "127.0.0.1:0", credentials=own)
        rpc, address = GrpcRpc(credentials=caller), await grpc_server.start()
        try:
            await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            revoke(own, caller)
            with pytest.raises(Unauthenticated):
                await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            renewed = of_server(A)
            for field in ("ca", "cert", "key"):
                shutil.copy(getattr(renewed.files, field), getattr(caller.files, field))
            await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
        finally:
            await rpc.close()
            await grpc_server.stop(0)

    uvloop.run(scenario())
