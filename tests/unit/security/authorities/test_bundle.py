"""Successors of a certificate authority: who accepts them, and the trust in certificates of both."""

import asyncio
import ssl

import pytest
import uvloop

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security import authority as authorities
from nyala.security import issue
from nyala.security.authorities import bundle
from nyala.security.authorities.bundle import Successor, check_accepted, parse, successor
from nyala.security.authority import Authority, cluster_of, load, write_private
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole
from tests.unit.security.certificates import authority

HOSTS = ("127.0.0.1", "localhost")


@pytest.fixture(scope="module")
def old() -> Authority:
    return load(authority())


@pytest.fixture(scope="module")
def new(old) -> Successor:
    return successor(old)


def files(folder, signer, trusted, role=AccessRole.SERVER, name="db1"):
    """Write the files of a holder who trusts some authorities; certificate and key are one file."""
    certificate, key = signer.issue(role, name, HOSTS)
    pem, ca = folder / f"{name}.pem", folder / f"{name}-ca.crt"
    write_private(pem, certificate + key)
    write_private(ca, b"".join(a.certificate_pem for a in trusted))
    return CredentialFiles(str(ca), str(pem), str(pem))


def test_successor_belongs_to_the_cluster_of_the_first_authority(old, new):
    again = successor(new.authority)
    assert new.authority.cluster == again.authority.cluster == old.cluster
    assert cluster_of(parse(new.link)[0]) == old.cluster
    certificate, _ = again.authority.issue(AccessRole.READER, "ann")
    assert identity_of_pem(certificate).principal.cluster == old.cluster
    keys = {bundle.key_id(a.certificate) for a in (old, new.authority, again.authority)}
    assert len(keys) == 3
    issued, _ = new.authority.issue(AccessRole.READER, "ann")
    assert identity_of_pem(issued).authority == bundle.key_id(new.authority.certificate)


def test_authority_counts_only_if_a_trusted_one_has_certified_its_key(old, new):
    trusted, offered = [old.certificate], [new.authority.certificate]
    check_accepted(trusted, [*offered, old.certificate], parse(new.link))
    third = successor(new.authority)
    links = [*parse(third.link), *parse(new.link)]  # in any order
    check_accepted(trusted, [third.authority.certificate], links)
    with pytest.raises(Unauthenticated, match="not certified by one that is trusted here"):
        check_accepted(trusted, offered, [])
    with pytest.raises(Unauthenticated):
        check_accepted(trusted, [third.authority.certificate], parse(third.link))
    foreign = load(authority("other"))
    forged = successor(foreign)
    for certificate, link in (
        (foreign.certificate, parse(new.link)),
        (forged.authority.certificate, parse(forged.link)),
    ):
        with pytest.raises(Unauthenticated):
            check_accepted(trusted, [certificate], link)


def test_certified_key_of_another_cluster_is_not_accepted(old):
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    elsewhere = authorities.self_signed(key, cluster="0" * 32)
    link = authorities.certified(key.public_key(), old.key, 1, old.cluster)
    with pytest.raises(Unauthenticated):
        check_accepted([old.certificate], [elsewhere], [link])


def test_digest_is_of_the_certificates_in_their_order(old, new):
    both = old.certificate_pem + new.authority.certificate_pem
    assert bundle.digest(both) == bundle.digest(b"comment\n" + both)
    assert bundle.digest(both) != bundle.digest(new.authority.certificate_pem + old.certificate_pem)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        bundle.digest(b"nothing")


def test_certificate_of_any_trusted_authority_is_used(tmp_path, old, new):
    for signer in (old, new.authority):
        own = files(tmp_path, signer, [old, new.authority])
        assert Credentials(own).principal.cluster == old.cluster
    with pytest.raises(InvalidArgument, match="was not issued by a certificate authority in"):
        Credentials(files(tmp_path, old, [new.authority]))


def test_folder_of_an_authority_that_was_replaced_issues_for_the_new_one(tmp_path, old, new):
    """As after the files of a master were copied to it."""
    for name, content in (
        ("ca.crt", new.authority.certificate_pem + old.certificate_pem),
        ("ca.key", authorities.key_pem(new.authority.key)),
        ("ca.links", new.link),
    ):
        write_private(tmp_path / name, content)
    made = issue.server(str(tmp_path), str(tmp_path / "out"), HOSTS)
    assert len(parse(Credentials(made).pem.cert)) == 2, "with the link"
    assert len(parse(Credentials(made).pem.ca)) == 2


async def _answers(port: int, context: ssl.SSLContext) -> bool:
    """Return whether a TLS server accepts a client, and the client the server."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"x")
        got = await reader.read(1)
        writer.close()
    except (ssl.SSLError, OSError):
        return False
    return got == b"x"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_listener_follows_each_step_and_those_who_know_the_old_authority_accept_the_new(
    tmp_path, old, new, run
):
    """The listener is made once; the files of its server change, as in a rotation."""
    own = files(tmp_path, old, [old])
    server = Credentials(own)
    first = Credentials(files(tmp_path, old, [old], AccessRole.READER, "first"))
    second = Credentials(
        files(tmp_path, new.authority, [new.authority], AccessRole.READER, "second")
    )

    async def echo(reader, writer):
        with_data = await reader.read(1)
        writer.write(with_data)
        await writer.drain()
        writer.close()

    async def scenario():
        listener = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=server.server_context())
        port = listener.sockets[0].getsockname()[1]

        async def answers():
            return [await _answers(port, c.client_context()) for c in (first, second)]

        assert await answers() == [True, False]
        files(tmp_path, old, [old, new.authority])
        assert server.refresh()
        assert await answers() == [True, False], "the second client does not trust the server yet"
        files(tmp_path, new.authority, [new.authority, old])
        assert server.refresh()
        assert await answers() == [True, True]
        files(tmp_path, new.authority, [new.authority])
        assert server.refresh()
        assert await answers() == [False, True], "the old authority is forgotten"
        listener.close()

    run(scenario())
