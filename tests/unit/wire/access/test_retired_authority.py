"""Open connections of certificates whose authority was retired: at each port, without a restart."""

import asyncio
from types import SimpleNamespace

import pytest
import uvloop

from nyala.common.errors import NyalaError, Unauthenticated, Unavailable
from nyala.common.ids import ServerUuid
from nyala.env.env import system_env
from nyala.raft.messages import PeerBatch
from nyala.security.authorities.bundle import successor
from nyala.security.authority import load, write_private
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole, server_name
from nyala.wire import connection, methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.peers import PeerTransport
from nyala.wire.proto import flight_pb2, nyala_pb2
from nyala.wire.server import GrpcServer
from nyala.wire.tls.access import identity_of_call
from tests.unit.security.certificates import authority
from tests.unit.web.secured import ask, secured
from tests.unit.wire.support.peer_port import CLUSTER, A, B, heartbeat
from tests.unit.wire.support.wire_helpers import BatchStore
from tests.waiting import eventually

OK = nyala_pb2.DescribeTableRequest(name="ok", id="1" * 32)
HOSTS = ("127.0.0.1",)


@pytest.fixture
def old():
    return load(authority())


@pytest.fixture
def new(old):
    return successor(old).authority


def holder(folder, name, signer, trusted, role=AccessRole.SERVER):
    """Return the credentials of a holder, whose files are written anew each time."""
    certificate, key = signer.issue(role, name, HOSTS if role is AccessRole.SERVER else ())
    write_private(folder / f"{name}.pem", certificate + key)
    write_private(folder / f"{name}.ca", b"".join(a.certificate_pem for a in trusted))
    pem = str(folder / f"{name}.pem")
    return Credentials(CredentialFiles(str(folder / f"{name}.ca"), pem, pem))


async def _drain(stream):
    async for _ in stream:
        pass


def test_calls_and_streams_of_a_retired_authority_end_and_those_of_the_new_one_go_on(
    tmp_path, monkeypatch, old, new
):
    monkeypatch.setattr(connection, "EXPIRED_S", 0.05)
    both, ticket = [new, old], flight_pb2.Ticket(ticket=b"1000000000")
    own = holder(tmp_path, "db1", new, both)

    async def scenario():
        grpc_server = GrpcServer(BatchStore().handlers(), "127.0.0.1:0", credentials=own)
        address, rpcs, streams = await grpc_server.start(), [], []
        try:
            for name, signer in (("ann", old), ("bob", new)):
                caller = holder(tmp_path, name, signer, both, AccessRole.READER)
                rpcs.append(GrpcRpc(credentials=caller))
                await rpcs[-1].call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
                streams.append(rpcs[-1].stream(address, methods.DO_GET, ticket))
                assert await anext(streams[-1])
            holder(tmp_path, "db1", new, [new])
            assert own.refresh()
            with pytest.raises(Unauthenticated, match="authority that was retired; get one of"):
                await rpcs[0].call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            with pytest.raises(NyalaError):
                await asyncio.wait_for(_drain(streams[0]), 20)
            with pytest.raises((Unauthenticated, Unavailable)):
                await anext(rpcs[0].stream(address, methods.DO_GET, ticket))
            await rpcs[1].call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
            for _ in range(3):
                assert await anext(streams[1])
        finally:
            for rpc in rpcs:
                await rpc.close()
            await grpc_server.stop(0)

    uvloop.run(scenario())


def test_server_of_a_retired_authority_loses_its_connections_to_the_peer_port(
    tmp_path, monkeypatch, old, new
):
    monkeypatch.setattr(connection, "EXPIRED_S", 0.05)
    both, got = [new, old], list[PeerBatch]()
    own = holder(tmp_path, server_name("tserver", B), new, both)
    sender = holder(tmp_path, server_name("tserver", A), old, both)

    async def scenario():
        rpc = GrpcRpc()
        env = system_env(rpc)
        one, other = (PeerTransport(env, lambda: CLUSTER, credentials=c) for c in (sender, own))
        try:
            address = await other.listen("127.0.0.1:0", ServerUuid(B))
            other.receive(got.append, lambda _uuid: None)
            one.send(address, heartbeat(1))
            await eventually(lambda: len(got) == 1, "a frame")
            holder(tmp_path, server_name("tserver", B), new, [new])
            assert own.refresh()

            def dropped():
                one.send(address, heartbeat(2))
                return one.dropped() > 0

            await eventually(dropped, "the connection is closed, and not accepted again")
        finally:
            for transport in (one, other):
                await transport.close()
            await env.tasks.close()
            await rpc.close()

    uvloop.run(scenario())


def test_certificate_that_only_names_the_new_authority_does_not_count_as_issued_by_it(
    tmp_path, old, new
):
    """A holder of the old authority's key can write any key id into a certificate."""
    own = holder(tmp_path, "db1", new, [new, old])
    holder(tmp_path, "db1", new, [new])
    assert own.refresh()
    forged = type(new)(
        new.certificate, old.key
    )  # names the new one, is signed by the old one's key
    for signer, accepted in ((new, True), (forged, False), (old, False)):
        certificate, _ = signer.issue(AccessRole.ADMIN, "eve")
        context = SimpleNamespace(auth_context=lambda c=certificate: {"x509_pem_cert": [c]})
        if accepted:
            assert identity_of_call(context, own).principal.name == "eve"
            continue
        with pytest.raises(Unauthenticated, match="retired"):
            identity_of_call(context, own)


def test_session_that_a_certificate_of_a_retired_authority_began_ends(tmp_path, old, new):
    own = holder(tmp_path, "db1", new, [new, old])
    ann = holder(tmp_path, "ann", old, [new, old], AccessRole.READER).files

    def browse(address):
        link = ask(address, "/login-links", "POST", files=ann).body
        answer = ask(address, "/login", "POST", body=f"token={link}")
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert ask(address, "/", headers=cookie).status == 200
        holder(tmp_path, "db1", new, [new])
        assert own.refresh()
        assert ask(address, "/", headers=cookie).status == 401

    async def scenario():
        async with secured(own) as address:
            await asyncio.to_thread(browse, address)

    uvloop.run(scenario())
