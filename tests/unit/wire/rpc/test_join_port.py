"""The join port over real loopback connections: what a server that joins sends, and to whom."""

import asyncio
import contextlib
import ssl
import struct
from datetime import timedelta

import pytest
import uvloop

from nyala.admin.joining import join
from nyala.common.errors import (
    AlreadyPresent,
    InvalidArgument,
    TimedOut,
    Unauthenticated,
    Unavailable,
)
from nyala.env.env import system_env
from nyala.security import joined
from nyala.security.authority import load
from nyala.security.credentials import Credentials
from nyala.security.files import joined_files
from nyala.security.join_token import JoinToken
from nyala.security.principal import AccessRole, server_name
from nyala.security.signing_request import public_key_of
from nyala.wire.channels import GrpcRpc
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls import join_client, join_port
from nyala.wire.tls.join_port import JoinPort
from tests.unit.security.certificates import authority, server, server_files

SECRET = "5" * 64


def token(name="one"):
    return JoinToken(load(authority(name)).certificate_hash, "1" * 16, SECRET)


class Cluster:
    """A join port whose requests are recorded, and answered by an authority."""

    def __init__(self, name="one", failures=()):
        self.name, self.requests, self.failures = name, [], list(failures)

    async def answer(self, request):
        self.requests.append(request)
        if self.failures:
            raise self.failures.pop(0)
        signer, key = load(authority(self.name)), public_key_of(request.csr)
        name, valid = server_name(request.role, request.uuid), timedelta(days=1)
        return pb.JoinResponse(
            ca=signer.certificate_pem,
            certificate=signer.sign(key, AccessRole.SERVER, name, request.hosts, valid),
            master_addresses=["127.0.0.1:7051"],
        )

    @contextlib.asynccontextmanager
    async def serving(self, credentials=None):
        port = JoinPort(credentials or server(self.name), self.answer)
        try:
            yield await port.listen("127.0.0.1:0")
        finally:
            await port.close()


@contextlib.asynccontextmanager
async def environment():
    rpc = GrpcRpc()
    env = system_env(rpc)
    try:
        yield env
    finally:
        await env.tasks.close()
        await rpc.close()


async def joining(directory, address, known=None, timeout_s=20):
    async with environment() as env:
        wanted = known or token()
        return await join(
            env, str(directory), wanted, [address], "tserver", ["127.0.0.1"], timeout_s
        )


def test_server_gets_a_certificate_for_its_uuid_in_private_files(tmp_path):
    async def scenario():
        cluster = Cluster()
        async with cluster.serving() as address:
            files, masters = await joining(tmp_path / "t", address)
            with pytest.raises(AlreadyPresent, match="has joined its cluster already"):
                await joining(tmp_path / "t", address)
        return cluster, files, masters

    cluster, files, masters = uvloop.run(scenario())
    assert masters == ("127.0.0.1:7051",)
    assert joined_files(str(tmp_path / "t")) == files
    (request,) = cluster.requests
    assert (request.token_id, request.secret, request.role) == ("1" * 16, SECRET, "tserver")
    assert Credentials(files).principal.server_uuid == request.uuid
    folder = tmp_path / "t" / "certs"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {f.name: f.stat().st_mode & 0o777 for f in folder.iterdir()} == {
        "ca.crt": 0o600, "server.pem": 0o600,
    }  # fmt: skip


def test_joining_server_sends_no_secret_to_another_cluster(tmp_path):
    """The server at the address has a valid certificate, of an authority that the token does not name."""

    async def scenario():
        other = Cluster("other")
        async with other.serving() as address:
            with pytest.raises(Unauthenticated, match="another cluster than the token"):
                await joining(tmp_path / "t", address)
        assert other.requests == []

    uvloop.run(scenario())


class Impostor:
    """Credentials of another authority, which claim the authority of the token in their file."""

    def __init__(self, claimed):
        self._own = server("other")
        self.pem = type("Pem", (), {"ca": claimed})()

    def join_context(self):
        return self._own.join_context()


@pytest.mark.parametrize("appended", [False, True], ids=["its certificate", "and another one"])
def test_joining_server_verifies_that_the_master_has_a_certificate_of_the_pinned_authority(
    tmp_path, appended
):
    """Anyone can send the certificate of an authority; another one appended to it must not count."""
    claimed = load(authority()).certificate_pem
    if appended:
        claimed += load(authority("other")).certificate_pem

    async def scenario():
        other = Cluster("other")
        async with other.serving(Impostor(claimed)) as address:
            with pytest.raises(Unauthenticated, match="nothing secret was sent"):
                await joining(tmp_path / "t", address)
        assert other.requests == []

    uvloop.run(scenario())


def test_join_that_is_repeated_uses_the_same_uuid_and_key(tmp_path):
    async def scenario():
        cluster = Cluster(failures=[Unavailable("no leader")])
        async with cluster.serving() as address:
            await joining(tmp_path / "t", address)
        return cluster.requests

    first, second = uvloop.run(scenario())
    assert first.uuid == second.uuid
    assert public_key_of(first.csr) == public_key_of(second.csr)


def test_refusal_of_the_masters_reaches_the_server_at_once(tmp_path):
    async def scenario():
        cluster = Cluster(failures=[Unauthenticated("join token 1 expired 5 s ago")])
        async with cluster.serving() as address:
            with pytest.raises(Unauthenticated, match="expired 5 s ago"):
                await joining(tmp_path / "t", address)
        assert joined_files(str(tmp_path / "t")) is None

    uvloop.run(scenario())


def test_address_without_masters_is_named_with_what_to_do(tmp_path):
    async def scenario():
        with pytest.raises(TimedOut, match=r"no master let this server join.*--join-address"):
            await joining(tmp_path / "t", "127.0.0.1:1", timeout_s=0.2)
        with pytest.raises(InvalidArgument, match="--masters"):
            async with environment() as env:
                await join(env, str(tmp_path / "u"), token(), [], "tserver", ["h"], 1)

    uvloop.run(scenario())


def test_port_gives_the_authority_to_everyone_and_nothing_else_without_a_token():
    async def scenario():
        cluster = Cluster()
        async with cluster.serving() as address:
            ca = await join_client.fetch_authority(address)
            assert joined.pinned(ca, token(), address) == server().pem.ca
            host, port = address.split(":")
            context = ssl.create_default_context(cafile=server_files().ca)
            for raw in (struct.pack("<I", 1 << 31), struct.pack("<I", 3) + b"\xff\xff\xff"):
                reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
                writer.write(raw)
                assert await reader.read() == b""
                writer.close()
        assert cluster.requests == []

    uvloop.run(scenario())


def test_port_without_tls_or_with_an_old_version_accepts_nobody(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(join_port, "HANDSHAKE_S", 0.2)

    async def scenario():
        async with Cluster().serving() as address:
            host, port = address.split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(struct.pack("<I", 0))
            with contextlib.suppress(ConnectionError):
                assert b"\x00\x00\x00\x00" not in await reader.read()
            writer.close()
            old = ssl.create_default_context(cafile=server_files().ca)
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.open_connection(host, int(port), ssl=old)

    uvloop.run(scenario())
