"""Credentials that a job of Spark hands to its tasks: a user's certificate and its key, never a password.

The options `ca`, `cert` and `key` name files on the driver's machine. Their contents are pickled with readers
and writers, and kept by each process that receives them in a private folder of its user, so that executors on
other machines need no files. Spark uses one process for tasks of many jobs: those of a job without these
options do not use the credentials that another job has brought.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nyala.client.credentials import cluster_key, forget, remember
from nyala.client.login import store
from nyala.client.login.exchange import Issued
from nyala.client.login.session import login_of
from nyala.common.errors import InvalidArgument
from nyala.common.folders import own
from nyala.security.credentials import Credentials
from nyala.security.files import CredentialFiles, named_files
from nyala.security.identity import identity_of_pem
from nyala.security.principal import AccessRole

OPTIONS = ("ca", "cert", "key")
FOLDER = "tasks"
_brought: dict[str, CredentialFiles] = {}
"""Files that the newest job with credentials has brought to this process, by masters as it names them."""


class CarriedCredentials:
    """Contents of the files of a user. A process that unpickles it uses them for the cluster.

    Args:
        masters: addresses of the masters.
        ca: authorities that are trusted, as PEM.
        cert: certificate of the user.
        key: its private key.
    """

    def __init__(self, masters: str, ca: bytes, cert: bytes, key: bytes) -> None:
        self._contents = masters, ca, cert, key

    def __reduce__(self) -> tuple[Any, ...]:
        return received, self._contents


class NoCredentials:
    """Mark of a job without credentials. A process that unpickles it uses none of another job.

    Args:
        masters: addresses of the masters.
    """

    def __init__(self, masters: str) -> None:
        self._masters = masters

    def __reduce__(self) -> tuple[Any, ...]:
        return without, (self._masters,)


def without(masters: str) -> NoCredentials:
    """Stop using the credentials of other jobs in this process; return the mark.

    Args:
        masters: addresses of the masters.
    """
    for named in [m for m in _brought if set(m.split(",")) & set(masters.split(","))]:
        forget(named, _brought.pop(named))
    return NoCredentials(masters)


def _use(masters: str, files: CredentialFiles) -> None:
    remember(masters, files)
    _brought[masters] = files


def received(masters: str, ca: bytes, cert: bytes, key: bytes) -> CarriedCredentials:
    """Use the credentials of a job in this process; return them.

    An older certificate does not replace a later one of the same user, which another job has brought.

    Args:
        masters: as the others: see `CarriedCredentials`.
        ca: PEM.
        cert: PEM.
        key: PEM.

    Raises:
        InvalidArgument: they have ended, or no folder of this user can be written to.
    """
    identity = identity_of_pem(cert)
    place = own.temporary() / FOLDER
    if not own.prepare(place.parent) or not own.prepare(place):
        raise InvalidArgument(
            f"the credentials of the job cannot be kept in {place}, which another user may write to; set "
            "TMPDIR of the executors to another folder"
        )
    whose = f"{cluster_key(masters)} {identity.principal.uri}"
    folder = place / hashlib.sha256(whose.encode()).hexdigest()[:32]
    files = store.files_in(folder)
    there = _content(files.cert)
    older = bool(there) and identity.issued_s < identity_of_pem(there).issued_s
    # Other processes of this user connect again when the files change, as they would with every task.
    if not older and (there, _content(files.ca)) != (cert + key, ca):
        files = store.write(folder, Issued(ca, cert, key, ()))
    _use(masters, files)
    return CarriedCredentials(masters, ca, cert, key)


def _content(file: str) -> bytes:
    """Return the bytes of a file; none if there is no such file."""
    path = Path(file)
    return path.read_bytes() if path.exists() else b""


def carried(options: Mapping[str, str], masters: str) -> CarriedCredentials | NoCredentials:
    """Return the credentials that options name, which this process uses too, or the mark that there are none.

    Args:
        options: of a read, a write or a stream.
        masters: addresses of the masters.

    Raises:
        InvalidArgument: not all three files, files that are invalid, or those of a server.
    """
    files = named_files(*(options.get(name) for name in OPTIONS))
    if files is None:
        return without(masters)
    known = Credentials(files)
    if known.principal.role is AccessRole.SERVER:
        raise InvalidArgument(
            f"{files.cert} is the certificate of a server, which is not handed to tasks; use one of a user"
        )
    _use(masters, files)
    return CarriedCredentials(masters, known.pem.ca, known.pem.cert, known.pem.key)


def login_options(masters: str) -> dict[str, str]:
    """Return options with which Spark uses the login that `nyala.connect(user=, password=)` made here.

    Args:
        masters: addresses of the masters, as given to `connect`.

    Returns:
        The options `ca`, `cert` and `key`; none without a login.
    """
    files = login_of(masters.split(","))
    return (
        {} if files is None else dict(zip(OPTIONS, (files.ca, files.cert, files.key), strict=True))
    )
