"""Certificates of the authorities that a process trusts, in `ca.crt`: the first one issues new certificates.

A process takes another authority only if one that it trusts has certified its key (a link), whoever sent it.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from nyala.common.errors import Corrupt, InvalidArgument, Unauthenticated
from nyala.security.authority import (
    CA_DAYS,
    Authority,
    certified,
    cluster_of,
    issuer_among,
    self_signed,
)
from nyala.security.identity import KEPT


@dataclass(frozen=True, slots=True)
class Successor:
    """A new authority of a cluster.

    Attributes:
        authority: the authority.
        link: its key, certified by the authority before it, as PEM.
    """

    authority: Authority
    link: bytes


def successor(before: Authority) -> Successor:
    """Return a new authority for the cluster of another one."""
    key = ec.generate_private_key(ec.SECP256R1())
    linked = certified(key.public_key(), before.key, CA_DAYS, before.cluster)
    link = pem_of([linked])
    return Successor(Authority(self_signed(key, cluster=before.cluster), key, link), link)


def parse(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates in a PEM text, in its order.

    Raises:
        InvalidArgument: it has none, or one of them cannot be read.
    """
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as err:
        raise InvalidArgument(f"certificates of authorities cannot be read: {err}") from err


def pem_of(certificates: Iterable[x509.Certificate]) -> bytes:
    """Return certificates as one PEM text."""
    return b"".join(c.public_bytes(serialization.Encoding.PEM) for c in certificates)


def fingerprint(certificate: x509.Certificate) -> str:
    """Return the SHA-256 of a certificate, in hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


@lru_cache(maxsize=KEPT)
def digest(pem: bytes) -> bytes:
    """Return the digest of a PEM text, by which two of them are compared; each server reports its own often.

    Raises:
        InvalidArgument: see `parse`.
    """
    return hashlib.sha256(pem_of(parse(pem))).digest()


def key_id(certificate: x509.Certificate) -> str:
    """Return the key id of an authority, in hex; the certificates that it issues name it.

    Raises:
        Corrupt: it has none.
    """
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound as err:
        raise Corrupt("the certificate of an authority has no key id") from err
    return found.digest.hex()


def check_linked(
    before: ec.EllipticCurvePublicKey,
    certificate: x509.Certificate,
    links: Sequence[x509.Certificate],
) -> None:
    """Check that the key of an authority was certified by the one before it.

    Args:
        before: key of the authority before.
        certificate: of the authority.
        links: keys of authorities, each certified by an earlier one.

    Raises:
        Unauthenticated: it was not.
    """
    for link in links:
        with contextlib.suppress(InvalidSignature):
            if link.public_key() == certificate.public_key():
                before.verify(link.signature, link.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
                return
    raise Unauthenticated(
        f"the certificate authority with the key id {key_id(certificate)} is not certified by the one before "
        "it, and was not accepted"
    )


def check_accepted(
    trusted: Sequence[x509.Certificate],
    offered: Sequence[x509.Certificate],
    links: Sequence[x509.Certificate],
) -> None:
    """Check that authorities are those of the cluster: trusted, or linked to one that is.

    Args:
        trusted: certificates of authorities that this process trusts.
        offered: certificates of authorities.
        links: keys of authorities, each certified by an earlier one.

    Raises:
        Unauthenticated: an authority is neither, or of another cluster.
    """
    known = list(trusted)
    left = list(links)
    while linked := [link for link in left if issuer_among(known, link) is not None]:
        known += linked
        left = [link for link in left if link not in linked]
    keys = {key_id(c) for c in known}
    ours = cluster_of(trusted[0])
    for certificate in offered:
        if key_id(certificate) not in keys or cluster_of(certificate) != ours:
            raise Unauthenticated(
                f"the certificate authority with the key id {key_id(certificate)} is not certified by one "
                "that is trusted here, and was not accepted"
            )
