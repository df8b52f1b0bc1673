"""Credentials of clients of this process: given to `connect`, of the environment, or noted for a user."""

import os
from collections.abc import Sequence

from nyala.client.cluster.masters import parse_addresses
from nyala.common.errors import InvalidArgument
from nyala.security import known
from nyala.security.credentials import Credentials
from nyala.security.files import (
    CERT_VARIABLE,
    PASSWORD_VARIABLE,
    USER_VARIABLE,
    CredentialFiles,
    files_of_environment,
    named_files,
)

_given: dict[str, CredentialFiles] = {}
"""Those given in this process, by address of a server."""


def cluster_key(masters: str) -> str:
    """Return masters as a key: clients order them differently."""
    return ",".join(sorted(parse_addresses(masters)))


def remember(masters: str, files: CredentialFiles) -> None:
    """Use the files for clients of these masters that are made without any, as those of scan tokens are."""
    _given.update(dict.fromkeys(parse_addresses(masters), files))


def forget(masters: str, files: CredentialFiles) -> None:
    """Undo `remember`, for those of these masters for which no other files were given since."""
    for address in parse_addresses(masters):
        if _given.get(address) == files:
            del _given[address]


def remembered(servers: str) -> CredentialFiles | None:
    """Return the files that `remember` was given for some of these servers; None: none."""
    return next((_given[a] for a in parse_addresses(servers) if a in _given), None)


def credentials_for(servers: str) -> Credentials | None:
    """Return the credentials of a client that was given none; None: it uses no encryption.

    They are those of an earlier client of this process, else those that the environment names, else those of
    a login with its user and password, else those that are noted for this user (`security/known.py`).

    Args:
        servers: addresses of masters or other servers of one cluster, "host:port,...".

    Raises:
        InvalidArgument: the environment names some of the files only, or they are invalid.
        NyalaError: the login failed.
    """
    named = parse_addresses(servers)
    files = remembered(servers) or _of_environment(named) or known.noted(named)
    return None if files is None else Credentials(files)


def given_files(
    masters: str, ca: str | None, cert: str | None, key: str | None,
    user: str | None, password: str | None, login: str | None = None,
) -> CredentialFiles | None:  # fmt: skip
    """Return the files that the caller of `connect` names, or a login with the password; None: neither.

    Args:
        masters: addresses of masters.
        ca: file of the authority's certificate, as for the others None: not named.
        cert: file of the user's certificate.
        key: file of its key.
        user: name of an account.
        password: its password.
        login: join addresses of masters, at which users log in; None: NYALA_LOGIN, else those known.

    Raises:
        InvalidArgument: they do not belong together.
        NyalaError: the login failed.
    """
    if user is None and password is None:
        if login is not None:
            raise InvalidArgument(
                "login names where user and password are sent: give these too, or omit it"
            )
        return named_files(ca, cert, key)
    if not user or not password or cert is not None or key is not None:
        raise InvalidArgument(
            "user and password belong together, and come without cert and key, which the login gives; ca may "
            "name the certificate of the authority"
        )
    from nyala.client.login.session import session_files  # slow to import

    return session_files(parse_addresses(masters), user, password, ca or "", login or "")


def _of_environment(masters: Sequence[str]) -> CredentialFiles | None:
    """Return the files that the environment names, or a login with its user and password; None: neither."""
    user, password = (os.environ.get(v) for v in (USER_VARIABLE, PASSWORD_VARIABLE))
    if not user or not password or os.environ.get(CERT_VARIABLE):
        return files_of_environment()
    from nyala.client.login.session import session_files  # slow to import

    return session_files(masters, user, password)
