"""The certificate of a server that joined, in the folder `certs` of its data directory.

Certificate and key are one file, so that both are replaced at once when the server renews them.
"""

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from nyala.common.errors import Unauthenticated
from nyala.security.authority import CA_CERTIFICATE, private_folder, write_private
from nyala.security.credentials import Credentials
from nyala.security.files import CERTS, SERVER_FILE, CredentialFiles
from nyala.security.join_token import JoinToken
from nyala.security.signing_request import new_request

_WAITING = ".server.key"
"""Key of a server that has not received its certificate: it asks again with the same one."""


def pinned(ca: bytes, token: JoinToken, address: str) -> bytes:
    """Return the certificate of the authority that a token names, as PEM.

    Args:
        ca: what a server sent. Only the certificate with the hash is returned, which covers no other one.
        token: the token.
        address: of the server, for the error.

    Raises:
        Unauthenticated: it is another certificate, or none.
    """
    try:
        sent = x509.load_pem_x509_certificates(ca)
    except ValueError:
        sent = []
    named = (c for c in sent if c.fingerprint(hashes.SHA256()).hex() == token.ca_hash)
    found = next(named, None)
    if found is None:
        raise Unauthenticated(
            f"the server at {address} belongs to another cluster than the token; nothing secret was sent. "
            "Check the addresses of the masters, and use a token of the same cluster, made since its "
            "authority was replaced (nyala ca rotate) if it was"
        )
    return found.public_bytes(serialization.Encoding.PEM)


def waiting_key(directory: str) -> bytes:
    """Return the private key of a server that joins, as PEM; made on the first call.

    Args:
        directory: the data directory.
    """
    path = private_folder(f"{directory}/{CERTS}") / _WAITING
    if not path.exists():
        write_private(path, new_request()[0])
    return path.read_bytes()


def keep(directory: str, ca: bytes, certificate: bytes) -> CredentialFiles:
    """Write the files of a server that has joined; return their paths.

    Args:
        directory: the data directory.
        ca: certificate of the authority, as PEM.
        certificate: of the server, for the key of `waiting_key`.

    Raises:
        InvalidArgument: they do not belong together.
    """
    key, folder = waiting_key(directory), private_folder(f"{directory}/{CERTS}")
    write_private(folder / CA_CERTIFICATE, ca)
    write_private(folder / SERVER_FILE, certificate + key)
    pem = str(folder / SERVER_FILE)
    files = CredentialFiles(str(folder / CA_CERTIFICATE), pem, pem)
    Credentials(files)
    (folder / _WAITING).unlink()
    return files
