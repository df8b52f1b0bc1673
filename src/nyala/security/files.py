"""The files of the credentials of a process, and the environment variables that name them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from nyala.common.errors import InvalidArgument

CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE = "NYALA_CA", "NYALA_CERT", "NYALA_KEY"
USER_VARIABLE, PASSWORD_VARIABLE = "NYALA_USER", "NYALA_PASSWORD"
LOGIN_VARIABLE = "NYALA_LOGIN"
"""Variable with the join addresses of masters, at which users log in."""
CA_KEY = "ca.key"
CERTS, SERVER_FILE = "certs", "server.pem"
"""Folder in the data directory of a server that joined, and its file of certificate and key."""
VARIABLES = (CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
ENVIRONMENT = "the environment"


@dataclass(frozen=True, slots=True)
class CredentialFiles:
    """Paths of the files of a process.

    Attributes:
        ca: certificate of the authority.
        cert: certificate of the process.
        key: private key of it.
        source: what names them: `ENVIRONMENT`, a file (`security/known.py`), or empty: the caller.
    """

    ca: str
    cert: str
    key: str
    source: str = field(default="", compare=False)

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that name them."""
        return dict(zip(VARIABLES, (self.ca, self.cert, self.key), strict=True))

    @property
    def options(self) -> list[str]:
        """The options of a server's command that name them."""
        return ["--ca", self.ca, "--cert", self.cert, "--key", self.key]


def named_files(ca: str | None, cert: str | None, key: str | None) -> CredentialFiles | None:
    """Return the files that are named; None: none is.

    Args:
        ca: certificate of the authority; empty or None: not named, as for the others.
        cert: certificate of the process.
        key: private key of it.

    Raises:
        InvalidArgument: some are named and others are not.
    """
    given = {"ca": ca, "cert": cert, "key": key}
    missing = [name for name, path in given.items() if not path]
    if len(missing) == len(given):
        return None
    if not ca or not cert or not key:
        raise InvalidArgument(
            f"ca, cert and key belong together, and {' and '.join(missing)} is missing; name all three "
            f"files, or set {', '.join(VARIABLES)}"
        )
    return CredentialFiles(ca, cert, key)


def joined_files(directory: str) -> CredentialFiles | None:
    """Return the files of a server that joined its cluster with a token; None: it did not.

    Args:
        directory: its data directory.
    """
    pem = f"{directory}/{CERTS}/{SERVER_FILE}"
    return CredentialFiles(f"{directory}/{CERTS}/ca.crt", pem, pem) if os.path.exists(pem) else None


def files_of_environment(environ: Mapping[str, str] | None = None) -> CredentialFiles | None:
    """Return the files that NYALA_CA, NYALA_CERT and NYALA_KEY name; None: none is set.

    Args:
        environ: environment variables; None: of this process.

    Raises:
        InvalidArgument: some are set and others are not.
    """
    known = os.environ if environ is None else environ
    named = named_files(*(known.get(variable, "") for variable in VARIABLES))
    return None if named is None else replace(named, source=ENVIRONMENT)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
