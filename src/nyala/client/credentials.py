"""Credentials of the clients of this process, by cluster: given to `connect`, or named by the environment."""

from nyala.client.cluster.masters import parse_addresses
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles, files_of_environment

_given: dict[str, CredentialFiles] = {}


def cluster_key(masters: str) -> str:
    """Return masters as a key: clients order them differently."""
    return ",".join(sorted(parse_addresses(masters)))


def remember(masters: str, files: CredentialFiles) -> None:
    """Use the files for clients of these masters that are made without any, as those of scan tokens are."""
    _given[cluster_key(masters)] = files


def credentials_for(masters: str) -> Credentials | None:
    """Return the credentials of a client that was given none; None: it uses no encryption.

    Raises:
        InvalidArgument: the environment names some of the files only, or they are invalid.
    """
    files = _given.get(cluster_key(masters)) or files_of_environment()
    return None if files is None else Credentials(files)
