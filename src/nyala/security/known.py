"""Credentials of the clusters of this user, by address: where `nyala up` put them, later processes find them.

The folder is `$XDG_DATA_HOME/nyala/credentials` or `~/.local/share/nyala/credentials`, and for a user without
one `nyala-<uid>/credentials` below the temporary folder. It has one file for each address of a server, which
names the three files of the credentials; a cluster that starts at an address replaces its file. A file whose
credentials are gone counts as none. A folder that another user could write to is not read.

The folder `logins` beside it has the same for `nyala login`, with the files themselves, and comes first.
"""

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from nyala.common import addresses
from nyala.common.errors import NyalaError
from nyala.common.folders import own
from nyala.security.files import CredentialFiles

ENTRY = ".json"
LOGINS, CREDENTIALS = "logins", "credentials"
"""Names of the folders, first choice first."""


def record(
    servers: Iterable[str], files: CredentialFiles, login: Iterable[str] = (),
    place: Path | None = None,
) -> Path | None:  # fmt: skip
    """Note the credentials of the servers at some addresses; return the folder.

    Args:
        servers: addresses, host:port.
        files: credentials for their clients.
        login: join addresses of its masters, at which users log in.
        place: folder for it; None: that of clusters of this user.

    Returns:
        None: no folder of this user can be written to; nothing was noted.
    """
    from nyala.security.authority import write_private  # slow to import, and clients only read

    place = place or _writable(CREDENTIALS)
    if place is None:
        return None
    paths = [str(Path(path).absolute()) for path in (files.ca, files.cert, files.key)]
    named = dict(zip(("ca", "cert", "key"), paths, strict=True)) | {"login": ",".join(login)}
    content = json.dumps(named, indent=1).encode()
    for server in servers:
        for earlier in _own_places() if place.name == CREDENTIALS else ():
            (earlier / _name(server)).unlink(missing_ok=True)
        write_private(place / _name(server), content)
    return place


def forget(servers: Iterable[str], files: CredentialFiles | None = None) -> None:
    """Remove what is noted for some addresses.

    Args:
        servers: addresses, host:port.
        files: only what names these; None: whatever it names.
    """
    for server in servers:
        for place in _own_places():
            path = place / _name(server)
            if files is None or _read(path) == files:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)


def noted(servers: Iterable[str]) -> CredentialFiles | None:
    """Return the credentials that are noted for the first of some addresses that has any; None: none has.

    Args:
        servers: addresses, host:port.
    """
    for server in servers:
        for place in _own_places():
            found = _read(place / _name(server))
            if found is not None:
                return found
    return None


def logged_in(servers: Iterable[str]) -> CredentialFiles | None:
    """Return the credentials of the login that is noted for one of some addresses; None: there is none."""
    found = noted(servers)
    return found if found is not None and Path(found.source).parent.name == LOGINS else None


def forget_files(files: CredentialFiles) -> None:
    """Remove every note of a login that names these files."""
    for place in _own_places():
        for path in place.glob(f"*{ENTRY}"):
            if place.name == LOGINS and _read(path) == files:
                path.unlink(missing_ok=True)


def login_addresses(servers: Iterable[str]) -> list[str]:
    """Return the join addresses that are noted for the first of some addresses that has any."""
    for server in servers:
        for place in _own_places():
            with contextlib.suppress(OSError, ValueError, AttributeError):
                named = json.loads((place / _name(server)).read_bytes()).get("login")
                if named and isinstance(named, str):
                    return named.split(",")
    return []


def place_of_logins() -> Path | None:
    """Return the folder for files of logins, which is made; None: no folder can be written to."""
    return _writable(LOGINS)


def usual_folder() -> Path:
    """Return the folder, for messages; it may not exist."""
    return next(p for p in _places() if p.name == CREDENTIALS)


def _writable(kind: str) -> Path | None:
    wanted = (p for p in _places() if p.name == kind)
    return next((p for p in wanted if own.prepare(p.parent) and own.prepare(p)), None)


def _places() -> Iterator[Path]:
    """Return the folders, first choice first."""
    base = own.of_user("XDG_DATA_HOME", ".local/share")
    for kind in (LOGINS, CREDENTIALS):
        for place in ([] if base is None else [base]) + [own.temporary()]:
            yield place / kind


def _own_places() -> Iterator[Path]:
    return (p for p in _places() if own.is_own(p.parent) and own.is_own(p))


def _name(server: str) -> str:
    """Return the name of the file of an address; localhost has that of 127.0.0.1."""
    try:
        host, port = addresses.parse(server)
    except NyalaError:
        return f"{server.replace('/', '_')}{ENTRY}"
    return addresses.join("127.0.0.1" if host == "localhost" else host, port) + ENTRY


def _read(path: Path) -> CredentialFiles | None:
    """Return the credentials that a file names; None: it is missing or invalid, or one of them is gone."""
    try:
        named = json.loads(path.read_bytes())
        found = CredentialFiles(named["ca"], named["cert"], named["key"], str(path))
        there = all(Path(p).is_file() for p in (found.ca, found.cert, found.key))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if there else None
