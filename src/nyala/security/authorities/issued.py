"""List of the certificates of users that an authority's folder has issued: the file `issued` in it.

No server hears of a certificate that `nyala cert user` makes. The list says who needs a new one before the
authority is retired. It has a line of JSON for each, which is durable before the certificate exists.
"""

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from nyala.common.errors import Corrupt, NotFound
from nyala.security.authority import private_folder
from nyala.security.files import CA_KEY
from nyala.security.identity import identity_of_pem

FILE = "issued"


@dataclass(frozen=True, slots=True)
class IssuedUser:
    """Certificate of a user that was issued.

    Attributes:
        serial: its serial number, in hex.
        user: name of its holder.
        issued_s: when it was issued, in seconds since the epoch.
        not_after: until when it is valid, in seconds since the epoch.
        authority: key id of the authority that issued it, in hex.
    """

    serial: str
    user: str
    issued_s: int
    not_after: int
    authority: str


def entry_of(certificate: bytes) -> IssuedUser:
    """Return the entry of a certificate, as PEM."""
    known = identity_of_pem(certificate)
    return IssuedUser(
        f"{known.serial:x}", known.principal.name, known.issued_s, known.ends_s, known.authority
    )


def add(directory: str, entry: IssuedUser) -> None:
    """Append an entry to the list of a folder; durable on return.

    A line without an end is of a command that was interrupted before its certificate existed: it is removed.

    Args:
        directory: folder of the authority.
        entry: of the certificate.

    Raises:
        OSError: it was not written.
    """
    path = private_folder(directory) / FILE
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        file.write(json.dumps(asdict(entry)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def load(directory: str) -> list[IssuedUser]:
    """Return the list of a folder.

    Raises:
        NotFound: the folder has no list.
        Corrupt: it cannot be read.
    """
    path = Path(directory, FILE)
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError) as err:
        if Path(directory, CA_KEY).exists():
            raise NotFound(
                f"{directory} has no list of the certificates of users ({FILE}). If it is the folder of "
                "nyala init, and these were made by an earlier version, see that their holders run nyala "
                f"cert renew, and make an empty list: touch {path}"
            ) from err
        raise NotFound(
            f"{directory} is not the folder of a certificate authority: name the one in which nyala init "
            f"made it, and which has the list of the certificates of users ({FILE})"
        ) from err
    found = []
    for number, line in enumerate(lines, 1):
        try:
            entry = IssuedUser(**json.loads(line))
            int(entry.serial, 16)
            found.append(entry)
        except (ValueError, TypeError) as err:
            raise Corrupt(
                f"line {number} of {path} is not the entry of a certificate ({err}); restore the file from a "
                "backup, or remove the line"
            ) from err
    return found
