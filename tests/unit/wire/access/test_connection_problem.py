"""Errors of addresses that give no answer: another port, or a certificate that is not accepted."""

import asyncio
import contextlib
import socket
import ssl
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop

from nyala.common.errors import InvalidArgument, Unauthenticated, Unavailable
from nyala.env.env import system_env
from nyala.security.authority import load
from nyala.security.credentials import PUBLIC_PROTOCOL, Credentials
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole, server_name
from nyala.security.signing_request import new_request, public_key_of
from nyala.web.server import WebServer
from nyala.wire import methods
from nyala.wire.channels import GrpcRpc
from nyala.wire.limits import RpcLimits
from nyala.wire.peers import PeerTransport
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server import GrpcServer
from nyala.wire.tls import problem
from nyala.wire.tls.join_port import JoinPort
from nyala.wire.tls.problem import connection_problem
from nyala.wire.tls.untrusted import UNTRUSTED
from tests.unit.security.certificates import authority, server, server_files, user, user_files
from tests.unit.web.secured import FACTS
from tests.unit.wire.support.peer_port import CLUSTER, B
from tests.unit.wire.support.wire_helpers import BatchStore

OK = pb.DescribeTableRequest(name="ok", id="1" * 32)


@contextlib.asynccontextmanager
async def public_port(credentials):
    made = GrpcServer(BatchStore().handlers(), "127.0.0.1:0", credentials=credentials)
    try:
        yield await made.start()
    finally:
        await made.stop(0)


@contextlib.asynccontextmanager
async def web_port(credentials):
    made = WebServer(FACTS, "127.0.0.1:0", credentials)
    try:
        yield await made.start()
    finally:
        await made.stop()


@contextlib.asynccontextmanager
async def peer_port(credentials):
    rpc = GrpcRpc()
    env = system_env(rpc)
    transport = PeerTransport(env, lambda: CLUSTER, credentials=credentials)
    try:
        yield await transport.listen("127.0.0.1:0", B)
    finally:
        await transport.close()
        await env.tasks.close()
        await rpc.close()


@contextlib.asynccontextmanager
async def joining_port(credentials):
    async def join(_request):
        raise AssertionError("nothing is asked of it")

    made = JoinPort(credentials, join)
    try:
        yield await made.listen("127.0.0.1:0")
    finally:
        await made.close()


def reader():
    return user(AccessRole.READER)


@pytest.mark.parametrize("client", [reader, lambda: None], ids=["certificate", "no certificate"])
@pytest.mark.parametrize(
    ("port", "said"),
    [(web_port, "is the web port"), (peer_port, "among themselves"), (joining_port, "a join port")],
    ids=["web", "peer", "join"],
)
def test_other_ports_are_named_and_no_certificate_is_blamed(port, said, client, monkeypatch):
    monkeypatch.setattr(problem, "HANDSHAKE_S", 0.2)  # what is silent is waited for

    async def scenario():
        async with port(server()) as address:
            found = await connection_problem(address, client())
            assert isinstance(found, InvalidArgument), found
            assert address in found.message
            assert said in found.message
            assert "7051 if it is not given" in found.message
            assert "certificate" not in found.message

    uvloop.run(scenario())


def test_web_port_without_encryption_is_named():
    async def scenario():
        async with web_port(None) as address:
            found = await connection_problem(address, None)
            assert isinstance(found, InvalidArgument)
            assert "is the web port" in found.message

    uvloop.run(scenario())


def test_certificate_that_the_server_accepts_is_not_blamed():
    """gRPC closes a connection that does not offer its protocol, as it does one with a bad certificate."""

    async def scenario():
        async with public_port(server()) as address:
            assert await connection_problem(address, reader()) is None

    uvloop.run(scenario())


def test_server_that_does_not_answer_the_end_of_a_connection_keeps_no_loop_open():
    """The loop of a client is closed right after the reason was asked for."""
    context, over = server().server_context(), threading.Event()
    context.set_alpn_protocols([PUBLIC_PROTOCOL])
    context.sni_callback = None
    context.verify_mode = ssl.CERT_NONE

    def hold(listening):
        plain, _ = listening.accept()
        with context.wrap_socket(plain, server_side=True) as link:
            link.send(b"x")
            over.wait(60)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=hold, args=(listening,))
        thread.start()
        try:
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            assert uvloop.run(connection_problem(address, reader())) is None
        finally:
            over.set()
            thread.join()


class Stranger:
    """Credentials of another authority, with which this cluster's servers are trusted."""

    files = user_files(AccessRole.READER, "other")

    def public_context(self):
        made = ssl.create_default_context(cafile=server_files().ca)
        made.load_cert_chain(self.files.cert, self.files.key)
        made.set_alpn_protocols([PUBLIC_PROTOCOL])
        return made


def test_certificate_that_the_server_refuses_is_blamed():
    who: Any = Stranger()

    async def scenario():
        async with public_port(server()) as address:
            found = await connection_problem(address, who)
            assert isinstance(found, Unauthenticated)
            assert f"it refuses the certificate {who.files.cert}" in found.message

    uvloop.run(scenario())


class Expired(Credentials):
    """Credentials of a server whose certificate has expired while it ran."""

    def __init__(self):
        super().__init__(server_files())
        folder = Path(tempfile.mkdtemp(prefix="nyala-test-"))
        key, request = new_request()
        name, valid = server_name("tserver", "a" * 32), timedelta(seconds=-60)
        hosts = ["127.0.0.1"]
        signed = load(authority()).sign(
            public_key_of(request), AccessRole.SERVER, name, hosts, valid
        )
        (folder / "server.pem").write_bytes(signed + key)
        path = str(folder / "server.pem")
        self.files = CredentialFiles(server_files().ca, path, path)
        self.pem = type(self.pem)(self.pem.ca, signed, key)


def test_expired_certificate_of_a_server_is_named_with_its_remedy_by_calls_too():
    async def scenario():
        rpc = GrpcRpc(RpcLimits(), reader())
        try:
            async with public_port(Expired()) as address:
                found = await connection_problem(address, reader())
                assert isinstance(found, Unauthenticated)
                assert "has expired" in found.message
                with pytest.raises(
                    Unavailable, match="runs, and its certificate has expired"
                ) as refused:
                    await rpc.call(address, methods.DESCRIBE_TABLE, OK, timeout_ms=5_000)
                assert "nyala cert server" in refused.value.message
                assert refused.value.details[UNTRUSTED] == "certificate has expired"
                assert refused.value.details["sent"] == "no"
        finally:
            await rpc.close()

    asyncio.run(scenario())
