"""Join tokens, requests for certificates, and the list of revoked certificates."""

import random
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from nyala.common.errors import InvalidArgument, Unauthenticated
from nyala.security import join_token, revocation
from nyala.security.authority import key_pem, load
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole, server_name
from nyala.security.revocation import Revocation, Revocations
from nyala.security.signing_request import new_request, public_key_of, request_for
from tests.unit.security.certificates import authority

UUID = "7" * 32
HASH = "a" * 64


def issued(name="ann", role=AccessRole.READER, hosts=(), valid=timedelta(days=1)):
    key = public_key_of(new_request()[1])
    return identity_of_pem(load(authority()).sign(key, role, name, hosts, valid))


def test_token_survives_its_text_form_and_hides_its_secret():
    token = join_token.new(HASH, random.Random(1))
    assert join_token.parse(f" {token}\n") == token
    assert token.secret not in repr(token)
    assert join_token.matches(token.secret, join_token.hash_of(token.secret))
    assert not join_token.matches(token.secret + "0", join_token.hash_of(token.secret))


@pytest.mark.parametrize("text", ["", "ny1.a.b.c", f"ny2.{HASH}.{'1' * 16}.{HASH}", f"{HASH}\0"])
def test_text_that_is_no_token_is_refused_without_being_repeated(text):
    with pytest.raises(InvalidArgument, match="copy the whole line") as refused:
        join_token.parse(text)
    assert not text or text not in refused.value.message


@pytest.mark.parametrize(
    ("role", "ttl_s", "uses", "why"),
    [
        ("reader", 60, 1, "not a role of servers"),
        ("tserver", 0, 1, "valid for 1 s to 30 days"),
        ("tserver", 31 * 86_400, 1, "valid for 1 s to 30 days"),
        ("master", 60, 0, "1 to 1000 uses"),
        ("master", 60, 1_001, "1 to 1000 uses"),
    ],
)
def test_token_has_limits(role, ttl_s, uses, why):
    with pytest.raises(InvalidArgument, match=why):
        join_token.check_wanted(role, ttl_s, uses)


def test_request_proves_that_its_sender_has_the_key():
    key, request = new_request()
    assert public_key_of(request_for(key)) == public_key_of(request)
    der = bytearray(x509.load_pem_x509_csr(request).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    with pytest.raises(InvalidArgument, match="not signed by its own key"):
        public_key_of(forged)


def test_request_with_another_kind_of_key_or_of_another_form_is_refused():
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    for key in (rsa.generate_private_key(65537, 2048), ec.generate_private_key(ec.SECP384R1())):
        request = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        with pytest.raises(InvalidArgument, match="P-256"):
            public_key_of(request)
    for malformed in (b"", b"x" * 10, new_request()[1] + b"\n" * 9_000):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            public_key_of(malformed)
    with pytest.raises(InvalidArgument, match="PEM"):
        request_for(b"no key")


def test_certificate_of_a_server_names_its_uuid_and_hosts():
    found = issued(server_name("tserver", UUID), AccessRole.SERVER, ["127.0.0.1", "db1"])
    assert found.principal.server_uuid == UUID
    assert set(found.hosts) == {"127.0.0.1", "db1"}
    assert found.renewal_s == pytest.approx(found.issued_s + 2 * 86_400 / 3, abs=2)
    assert issued("tserver-1", AccessRole.SERVER).principal.server_uuid is None
    assert issued(server_name("tserver", UUID)).principal.server_uuid is None, "a user"
    with pytest.raises(InvalidArgument, match="does not name a server"):
        server_name("tserver", "../x")


def test_revocation_is_by_serial_number_or_by_name_until_a_time():
    known, ann, bob = Revocations(), issued(), issued("bob")
    known.check(ann)
    known.replace([Revocation(revocation.id_of_serial(f"{ann.serial:x}"), 1)])
    with pytest.raises(Unauthenticated, match="was revoked"):
        known.check(ann)
    known.check(bob)
    known.replace([Revocation(revocation.id_of_name("bob"), bob.issued_s * 1_000_000)])
    known.check(ann)
    with pytest.raises(Unauthenticated, match="reader bob"):
        known.check(bob)
    known.replace([Revocation(revocation.id_of_name("bob"), bob.issued_s * 1_000_000 - 1)])
    known.check(bob)


def test_two_lists_are_equal_by_their_digests_whatever_their_order():
    entries = [Revocation("name-a", 1), Revocation("serial-1f", 2)]
    assert revocation.digest(entries) == revocation.digest(entries[::-1])
    assert revocation.digest(entries) != revocation.digest(entries[:1])
    assert revocation.id_of_serial("00:1F") == "serial-1f"
    for text in ("", "0", "xyz", "f" * 41):
        with pytest.raises(InvalidArgument, match="serial number"):
            revocation.id_of_serial(text)


def test_listeners_hear_of_each_change():
    known, heard = Revocations(), []
    known.on_change(lambda: heard.append(len(known)))
    known.replace([Revocation("name-a", 1)])
    assert heard == [1]


def test_key_of_the_request_is_kept_as_it_was_made():
    key, _ = new_request()
    loaded = serialization.load_pem_private_key(key, None)
    assert isinstance(loaded, ec.EllipticCurvePrivateKey)
    assert key_pem(loaded) == key
