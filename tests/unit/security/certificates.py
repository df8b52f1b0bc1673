"""Certificates for tests, each made once per process: keys cost time."""

import functools
import tempfile
from pathlib import Path

from nyala.security import issue
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles
from nyala.security.principal import AccessRole


def authority(name: str = "one") -> str:
    """Return the folder of a certificate authority."""
    return _authority(name)


@functools.cache
def _authority(name: str) -> str:
    folder = str(Path(tempfile.mkdtemp(prefix="nyala-test-ca-"), name))
    issue.initialise(folder)
    return folder


@functools.cache
def server_files(name: str = "one") -> CredentialFiles:
    """Return the files of a server on loopback."""
    folder = authority(name)
    return issue.server(folder, f"{folder}-server", ["127.0.0.1", "localhost"])


@functools.cache
def user_files(role: AccessRole, name: str = "one") -> CredentialFiles:
    """Return the files of a user with a role."""
    folder = authority(name)
    return issue.user(folder, f"{folder}-{role.name}", role.name.lower(), role)


def server(name: str = "one") -> Credentials:
    """Return credentials of a server on loopback."""
    return Credentials(server_files(name))


def user(role: AccessRole, name: str = "one") -> Credentials:
    """Return credentials of a user with a role."""
    return Credentials(user_files(role, name))
