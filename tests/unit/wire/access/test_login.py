"""Logins over the join port, on real loopback connections: what is sent, to whom, and what is kept."""

import asyncio
import contextlib
import socket
from datetime import timedelta

import pytest
import uvloop

from nyala.client.login import exchange, store, trust
from nyala.client.login.exchange import Proof
from nyala.common.errors import InvalidArgument, Unauthenticated, Unavailable
from nyala.security import issue, known
from nyala.security.authority import load
from nyala.security.credentials import Credentials
from nyala.security.principal import AccessRole, server_name
from nyala.security.signing_request import public_key_of
from nyala.wire.proto import access_pb2 as pb
from nyala.wire.tls import join_client
from nyala.wire.tls.join_port import JoinPort
from tests.unit.security.certificates import authority, server, server_files

PASSWORD = "correct horse battery"
PROOF = Proof("ann", PASSWORD)
MASTERS = ["127.0.0.1:7051"]


class Cluster:
    """A join port whose logins are recorded, and answered by an authority."""

    def __init__(self, name="one", failure=None, credentials=None):
        self.name, self.requests, self.failure = name, [], failure
        self.credentials = credentials or server(name)

    async def answer(self, request):
        self.requests.append(request)
        if self.failure is not None:
            raise self.failure
        key, valid = public_key_of(request.csr), timedelta(hours=1)
        signed = load(authority(self.name)).sign(key, AccessRole.READER, "ann", (), valid)
        return pb.JoinResponse(certificate=signed, master_addresses=["127.0.0.1:7151"])

    @contextlib.asynccontextmanager
    async def serving(self):
        port = JoinPort(self.credentials, self.answer)
        try:
            yield await port.listen("127.0.0.1:0")
        finally:
            await port.close()


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder of a user who has nothing noted."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "data" / "nyala"


def ca(name="one"):
    return load(authority(name)).certificate_pem


def unused_address():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{sock.getsockname()[1]}"


def test_login_gets_a_certificate_that_later_processes_find_until_the_logout(folder):
    async def scenario():
        cluster = Cluster()
        async with cluster.serving() as address:
            addresses = [unused_address(), address]
            issued = await exchange.log_in(addresses, ca(), PROOF)
            return cluster.requests, issued, addresses

    (request,), issued, addresses = uvloop.run(scenario())
    assert (request.login.name, request.login.password) == ("ann", PASSWORD)
    assert request.login.peer_host == "127.0.0.1"
    known.record(MASTERS, server_files())  # by nyala up
    files = store.keep(MASTERS, addresses, issued)
    assert Credentials(files).principal.name == "ann"
    for master in (*MASTERS, "127.0.0.1:7151"):
        assert known.noted([master]) == files
        assert known.login_addresses([master]) == addresses
    modes = {p.stat().st_mode & 0o777 for p in folder.rglob("*") if p.is_file()}
    assert modes == {0o600}
    assert store.forget(MASTERS)
    assert known.noted(MASTERS) == server_files()
    assert known.noted(["127.0.0.1:7151"]) is None
    assert not list((folder / "logins").rglob("*"))
    assert not store.forget(MASTERS), "what nyala up has noted is no login"
    assert known.noted(MASTERS) == server_files()


def test_password_is_not_sent_to_a_server_of_another_authority():
    """The server at the address has a valid certificate, of an authority that the user does not trust."""

    async def scenario():
        other = Cluster("other")
        async with other.serving() as address:
            with pytest.raises(Unauthenticated, match="nothing secret was sent"):
                await exchange.log_in([address], ca(), PROOF)
        assert other.requests == []

    uvloop.run(scenario())


@pytest.mark.parametrize(
    ("kind", "sent"), [("tserver", False), ("member", False), ("master", True)]
)
def test_password_is_not_sent_to_a_tablet_server_in_the_place_of_a_master(tmp_path, kind, sent):
    """A tablet server that was taken over, on the machine of a master that is down, has its address."""
    files = issue.server(
        authority(), str(tmp_path / "s"), ["127.0.0.1"], name=server_name(kind, "7" * 32)
    )

    async def scenario():
        other = Cluster(credentials=Credentials(files))
        async with other.serving() as address:
            if sent:
                assert await exchange.log_in([address], ca(), PROOF)
            else:
                with pytest.raises(Unauthenticated, match="no master; nothing secret was sent"):
                    await exchange.log_in([address], ca(), PROOF)
        assert bool(other.requests) is sent

    uvloop.run(scenario())


def test_authority_is_trusted_by_its_fingerprint_only():
    async def scenario():
        asked = []

        def accept(fingerprint):
            asked.append(fingerprint)
            return True

        async with Cluster().serving() as address:
            found = await trust.by_fingerprint([unused_address(), address], accept)
            assert found == ca()
            with pytest.raises(Unauthenticated, match=r"not accepted; nothing secret was sent"):
                await trust.by_fingerprint([address], lambda f: False)
        assert asked == [load(authority()).certificate_hash]
        with pytest.raises(Unavailable, match="--join-address"):
            await trust.by_fingerprint([unused_address()], lambda f: True)

    uvloop.run(scenario())


def test_fingerprint_is_read_in_each_usual_form():
    plain = load(authority()).certificate_hash
    colons = ":".join(plain[i : i + 2] for i in range(0, 64, 2)).upper()
    for text in (plain, f"SHA256:{plain}", colons, f" sha256:{colons}\n"):
        assert trust.parse_fingerprint(text) == plain
    for text in ("", plain[:-2], plain + "00", "z" * 64):
        with pytest.raises(InvalidArgument, match="64 hex digits"):
            trust.parse_fingerprint(text)


def test_refusal_of_the_masters_reaches_the_user_and_no_log_has_the_password(caplog):
    async def scenario():
        async with Cluster(failure=Unauthenticated("the password is wrong")).serving() as address:
            with pytest.raises(Unauthenticated, match="password is wrong"):
                await exchange.log_in([address, unused_address()], ca(), PROOF)
        with pytest.raises(Unavailable, match="no master lets users log in"):
            await exchange.log_in([unused_address()], ca(), PROOF)

    with caplog.at_level("DEBUG"):
        uvloop.run(scenario())
    assert "user 'ann' did not log in" in caplog.text
    assert PASSWORD not in caplog.text
    assert PASSWORD not in repr(PROOF)


def test_login_is_looked_for_above_the_public_port_unless_another_one_is_known():
    assert store.login_addresses(["10.0.0.5:7051"]) == ["10.0.0.5:10051"]
    assert store.login_addresses(["10.0.0.5:7051"], "h:1, h:2") == ["h:1", "h:2"]
    known.record(["10.0.0.5:7051"], server_files(), ["10.0.0.5:20051"])
    assert store.login_addresses(["10.0.0.5:7051"]) == ["10.0.0.5:20051"]
    with pytest.raises(InvalidArgument, match="--login HOST:PORT"):
        store.login_addresses(["10.0.0.5:65000"])


def test_request_of_a_server_that_joins_is_not_taken_for_a_login():
    async def scenario():
        cluster = Cluster(failure=Unauthenticated("no"))
        async with cluster.serving() as address:
            wanted = pb.JoinRequest(csr=b"x", uuid="1" * 32)
            with pytest.raises(Unauthenticated):
                await join_client.join(address, ca(), wanted)
        assert not cluster.requests[0].HasField("login")

    asyncio.run(scenario())
