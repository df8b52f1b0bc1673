"""Files of a user whose certificate was issued again by a new authority, for the same private key."""

from pathlib import Path

from nyala.security.authority import write_private
from nyala.security.credentials import Credentials


def replace(known: Credentials, ca: bytes, certificate: bytes) -> None:
    """Write the files of credentials again: each one atomically, and so that they fit together at any time.

    Other processes may read them meanwhile. So the key stays, and `ca.crt` is first: it has both authorities
    as long as certificates are issued again.

    Args:
        known: the credentials, whose files are replaced.
        ca: authorities that are trusted, as PEM; nothing is written if they are the same.
        certificate: the new certificate of the same key; empty: it stays.

    Raises:
        OSError: a file was not written.
    """
    files = known.files
    if ca != known.pem.ca:
        write_private(Path(files.ca), ca)
    if certificate:
        key = known.pem.key if files.cert == files.key else b""
        write_private(Path(files.cert), certificate + _private(key))


def _private(pem: bytes) -> bytes:
    """Return the private key in a PEM text, without certificates before it."""
    begin = pem.find(b"-----BEGIN PRIVATE KEY-----")
    return pem[begin:] if begin >= 0 else b""
