"""Network of a server process: its credentials, and the host that it listens on."""

import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from nyala.common import addresses
from nyala.common.errors import InvalidArgument
from nyala.security.credentials import Credentials
from nyala.security.files import (
    CA_VARIABLE,
    CERT_VARIABLE,
    KEY_VARIABLE,
    joined_files,
    named_files,
)
from nyala.security.policy import require_server

if TYPE_CHECKING:
    from nyala.security.authorities.keyring import Keyring

PRIVATE = 0o077
"""Mode bits that the files and folders of a server do not have: they are for its user only."""
Ca = Annotated[
    str,
    typer.Option(
        "--ca", envvar=CA_VARIABLE, help="Certificate of the cluster's authority (ca.crt)."
    ),
]
Cert = Annotated[
    str,
    typer.Option(
        "--cert", envvar=CERT_VARIABLE, help="Certificate of this server; see nyala cert."
    ),
]
Key = Annotated[
    str, typer.Option("--key", envvar=KEY_VARIABLE, help="Private key of the certificate.")
]


@dataclass(frozen=True, slots=True)
class Network:
    """Network of one server process.

    Attributes:
        credentials: for TLS; None: no encryption, and loopback addresses only.
        bind: host to listen on; empty: that of each address.
    """

    credentials: Credentials | None = None
    bind: str = ""

    @classmethod
    def of(cls, ca: str, cert: str, key: str, bind: str, directory: str = "") -> "Network":
        """Return the network of a server.

        Args:
            ca: file of the authority's certificate; empty: none, as for the others.
            cert: file of the server's certificate.
            key: file of its key.
            bind: host to listen on; empty: that of each address.
            directory: data directory of the server; if no files are named, and it joined with a token, those
                in there are used.

        Raises:
            InvalidArgument: some files are missing or do not belong together.
            Forbidden: the certificate is that of a user.
        """
        files = named_files(ca, cert, key) or (joined_files(directory) if directory else None)
        if files is None:
            return cls(None, bind)
        _write_no_core_files()
        credentials = Credentials(files)
        require_server(credentials.principal)
        return cls(credentials, bind)

    def keys(self) -> "Keyring | None":
        """Return the keys of certificate authorities of a master; None: there is no `ca.key` beside `ca.crt`.

        Raises:
            Corrupt, InvalidArgument: they are not those of `ca.crt`, or others may read them.
        """
        if self.credentials is None:
            return None
        from nyala.security.authorities.keyring import Keyring  # slow to import

        return Keyring.beside(self.credentials.files.ca)

    def listen_on(self, address: str) -> str:
        """Return the address to listen on, for one that others use.

        Raises:
            InvalidArgument: it is not an address, or it names no single host.
        """
        host, port = addresses.parse(address)
        if not self.bind:
            if host in ("0.0.0.0", "::"):
                raise InvalidArgument(
                    f"{address} is every interface, which others cannot connect to; give --address, "
                    "--peer-address and --web-address as others reach them, and --bind 0.0.0.0"
                )
            return address
        return addresses.join(self.bind, port)


def _write_no_core_files() -> None:
    """Set the soft limit of core files to 0 bytes: the memory of a server has private keys, and rows.

    The hard limit stays, so that an administrator can raise it for a running process.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
