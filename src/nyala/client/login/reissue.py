"""Files of a user whose certificate was issued again by a new authority."""

from pathlib import Path

from nyala.security.authority import write_private
from nyala.security.credentials import Credentials


def replace(known: Credentials, ca: bytes, certificate: bytes, key: bytes) -> None:
    """Write the files of credentials again; each is replaced atomically, in an order in which they fit.

    Args:
        known: the credentials, whose files are replaced.
        ca: authorities that are trusted, as PEM; nothing is written if they are the same.
        certificate: the new certificate; empty: it stays.
        key: its private key.

    Raises:
        OSError: a file was not written.
    """
    files = known.files
    if certificate and files.cert == files.key:
        write_private(Path(files.cert), certificate + key)
    elif certificate:
        write_private(Path(files.key), key)
        write_private(Path(files.cert), certificate)
    if ca != known.pem.ca:
        write_private(Path(files.ca), ca)
