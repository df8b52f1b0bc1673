"""The authority that a login trusts, decided before a secret is sent: by file, by hash, or as noted."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from nyala.common.errors import InvalidArgument, Retryable, Unauthenticated, Unavailable
from nyala.wire.tls import join_client

_HASH = re.compile(r"(?:sha256:)?((?:[0-9a-f]{2}:?){32})")


def fingerprint_of(ca: bytes) -> str:
    """Return the SHA-256 of the first certificate of a PEM text, in hex.

    Raises:
        InvalidArgument: it has none.
    """
    try:
        return x509.load_pem_x509_certificate(ca).fingerprint(hashes.SHA256()).hex()
    except ValueError as err:
        raise InvalidArgument(f"the certificate of the authority cannot be read: {err}") from err


def parse_fingerprint(text: str) -> str:
    """Return a SHA-256 in hex, of a text with or without colons and the prefix `sha256:`.

    Raises:
        InvalidArgument: it is not one.
    """
    found = _HASH.fullmatch(text.strip().lower())
    if found is None:
        raise InvalidArgument(
            f"{text[:100]!r} is not a SHA-256 fingerprint of 64 hex digits; an administrator reads it with: "
            "nyala cert show ca.crt"
        )
    return found[1].replace(":", "")


def of_file(path: str) -> bytes:
    """Return the certificates of authorities in a file, as PEM.

    Raises:
        InvalidArgument: it cannot be read, or is not a certificate.
    """
    try:
        ca = Path(path).read_bytes()
    except OSError as err:
        raise InvalidArgument(
            f"the certificate of the authority {path} cannot be read: {err.strerror}; name the ca.crt of the "
            "cluster"
        ) from err
    fingerprint_of(ca)
    return ca


async def by_fingerprint(addresses: Sequence[str], accept: Callable[[str], bool]) -> bytes:
    """Return the certificate that a master sends, as PEM, if its fingerprint is accepted.

    Nothing secret is sent. The next connection verifies that the master has a certificate of this authority.

    Args:
        addresses: join addresses of masters.
        accept: returns whether a fingerprint, as 64 hex digits, is that of the cluster.

    Raises:
        Unauthenticated: the fingerprint is not accepted.
        Unavailable: no master answers.
    """
    errors = []
    for address in addresses:
        try:
            ca = await join_client.fetch_authority(address)
        except Retryable as err:
            errors.append(err.message)
            continue
        found = fingerprint_of(ca)
        for one in x509.load_pem_x509_certificates(ca):  # several while an authority is replaced
            if accept(one.fingerprint(hashes.SHA256()).hex()):
                return one.public_bytes(serialization.Encoding.PEM)
        raise Unauthenticated(
            f"the authority of the server at {address} has the fingerprint {found}, which was not "
            "accepted; nothing secret was sent. Compare it with what an administrator reads with: "
            "nyala cert show ca.crt"
        )
    raise Unavailable("; ".join(errors) or "no address of a master is given")
