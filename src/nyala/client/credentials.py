"""Credentials of clients of this process: given to `connect`, of the environment, or noted for a user."""

from nyala.client.cluster.masters import parse_addresses
from nyala.security import known
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles, files_of_environment

_given: dict[str, CredentialFiles] = {}
"""Those given in this process, by address of a server."""


def cluster_key(masters: str) -> str:
    """Return masters as a key: clients order them differently."""
    return ",".join(sorted(parse_addresses(masters)))


def remember(masters: str, files: CredentialFiles) -> None:
    """Use the files for clients of these masters that are made without any, as those of scan tokens are."""
    _given.update(dict.fromkeys(parse_addresses(masters), files))


def credentials_for(servers: str) -> Credentials | None:
    """Return the credentials of a client that was given none; None: it uses no encryption.

    They are those of an earlier client of this process, else those that the environment names, else those
    that are noted for this user (`security/known.py`).

    Args:
        servers: addresses of masters or other servers of one cluster, "host:port,...".

    Raises:
        InvalidArgument: the environment names some of the files only, or they are invalid.
    """
    named = parse_addresses(servers)
    earlier = next((_given[a] for a in named if a in _given), None)
    files = earlier or files_of_environment() or known.noted(named)
    return None if files is None else Credentials(files)
