"""Reading and checking the files of credentials.

Imports `cryptography`, which costs 40 ms: only processes that have credentials import this module.
"""

import ssl
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

from cryptography import x509

from nyala.common.errors import InvalidArgument
from nyala.security.authority import check_private, cluster_of, issuer_among
from nyala.security.credentials import Pem
from nyala.security.files import CredentialFiles
from nyala.security.identity import KEPT
from nyala.security.known import LOGINS
from nyala.security.principal import Principal, principal_of


def read(files: CredentialFiles) -> tuple[Pem, Principal]:
    """Return the contents of the files, and who the certificate was issued to.

    Raises:
        InvalidArgument: a file is missing, cannot be read, is expired, or they do not belong together.
    """
    pem = Pem(_bytes(files.ca), _bytes(files.cert), _bytes(files.key))
    check_private(files.key)
    own = _certificate(pem.cert, files.cert)
    authority = issuer_among(_certificates(pem.ca, files.ca), own)
    if authority is None:
        raise InvalidArgument(
            f"{files.cert} was not issued by a certificate authority in {files.ca}; use the ca.crt of the "
            "same cluster, or, if its authority was replaced, a new certificate (nyala cert, nyala login)"
        )
    now, begins, ends = datetime.now(UTC), own.not_valid_before_utc, own.not_valid_after_utc
    if not begins <= now < ends:
        raise InvalidArgument(
            f"{files.cert} is valid from {begins:%Y-%m-%d %H:%M} to {ends:%Y-%m-%d %H:%M} UTC, and it is "
            f"{now:%Y-%m-%d %H:%M} here; {_new_one(files, own)}, or correct the clock"
        )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(files.cert, files.key)
    except (ssl.SSLError, OSError) as err:
        raise InvalidArgument(
            f"{files.key} is not the private key of {files.cert}: {err}; use the files of one call of "
            "nyala cert"
        ) from err
    principal = principal_of(uris(own))
    if principal.cluster != cluster_of(authority):
        raise InvalidArgument(f"{files.cert} belongs to another cluster than {files.ca}")
    return pem, principal


def _new_one(files: CredentialFiles, own: x509.Certificate) -> str:
    """Return how to get a certificate in place of one that has ended.

    Args:
        files: of its holder.
        own: the certificate.
    """
    if Path(files.source).parent.name == LOGINS:
        return "log in again (nyala login)"
    holder = principal_of(uris(own))
    if holder.server_uuid is None:
        return "make a new one (nyala cert)"
    hosts = " ".join(f"--host {h}" for h in hosts_of(own))
    into = f"write both, one after the other, into {files.cert}"
    where = into if files.cert == files.key else f"replace {files.cert} and {files.key} by them"
    return (
        f"make server.crt and server.key anew where the authority's folder is (nyala cert server --name "
        f"{holder.name} {hosts} --dir AUTHORITY --out NEW), and {where}"
    )


def read_certificate(path: str) -> x509.Certificate:
    """Return the certificate of a file.

    Raises:
        InvalidArgument: it cannot be read, or is not one.
    """
    return _certificate(_bytes(path), path)


def uris(certificate: x509.Certificate) -> list[str]:
    """Return the URIs in the subject alternative name of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return list(names.get_values_for_type(x509.UniformResourceIdentifier))


def hosts_of(certificate: x509.Certificate) -> tuple[str, ...]:
    """Return the names and addresses of hosts in the subject alternative name of a certificate."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    hosts = names.get_values_for_type(x509.DNSName)
    return (*hosts, *map(str, names.get_values_for_type(x509.IPAddress)))


def authority_of(certificate: x509.Certificate) -> str:
    """Return the key id of the authority that issued a certificate, in hex; empty: it does not say."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value
    except x509.ExtensionNotFound:
        return ""
    return (found.key_identifier or b"").hex()


@lru_cache(maxsize=KEPT)
def is_issued(ca: bytes, certificate: bytes) -> bool:
    """Return whether one of some authorities has issued a certificate itself.

    Args:
        ca: certificates of the authorities, as PEM.
        certificate: as PEM.
    """
    known = x509.load_pem_x509_certificates(ca)
    return issuer_among(known, x509.load_pem_x509_certificate(certificate)) is not None


def has_fewer(ca: bytes, before: bytes) -> bool:
    """Return whether an authority is missing that was there before.

    Args:
        ca: certificates of authorities, as PEM.
        before: earlier ones.
    """
    known = x509.load_pem_x509_certificates(ca)
    return any(c not in known for c in x509.load_pem_x509_certificates(before))


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as err:
        raise InvalidArgument(
            f"the credentials in {path} cannot be read: {err.strerror}; see nyala cert --help"
        ) from err


def _certificate(pem: bytes, path: str) -> x509.Certificate:
    return _certificates(pem, path)[0]


def _certificates(pem: bytes, path: str) -> list[x509.Certificate]:
    """Return the certificates of a file, of which there is one at least."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as err:
        raise InvalidArgument(f"{path} is not a certificate in PEM form: {err}") from err
