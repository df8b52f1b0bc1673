"""Folders of backups, and durable changes of their files.

A folder of backups has one folder for each table. In it are the elements, one folder each, with data files
and a manifest, which is written last: a folder without it is no element. `latest.json` has id and checksum
of the newest element; the process that adds or removes elements holds `.lock`. Folders with other names are
not nyala's: they are neither read nor removed.
"""

import errno
import fcntl
import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, unquote

from nyala.common.errors import InvalidArgument, Unavailable
from nyala.security.files import sync_folder

MANIFEST = "manifest.json"
LATEST = "latest.json"
LOCK = ".lock"
ELEMENT = re.compile(r"[0-9]{20}-(full|incremental)")
"""Name of the folder of an element, its id."""
MAX_FOLDER_NAME = 240
"""Bytes of a folder's name, less than what file systems allow."""


def table_folder(root: Path, table: str) -> Path:
    """Return the folder of a table's backups.

    Args:
        root: folder of the backups.
        table: name of the table.

    Raises:
        InvalidArgument: the name is too long for the name of a folder.
    """
    name = quote(table, safe=" ").replace(".", "%2E")
    if len(name) > MAX_FOLDER_NAME:
        raise InvalidArgument(
            f"the name of table {table[:40]!r}... is too long for a folder of backups: rename the table"
        )
    return root / name


def tables_in(root: Path) -> list[str]:
    """Return the names of the tables that have backups in a folder, sorted.

    Raises:
        InvalidArgument: there is no such folder, or it has no backups.
    """
    if not root.is_dir():
        raise InvalidArgument(f"{root}: there is no such folder; name a folder of backups")
    found = sorted(
        unquote(p.name)
        for p in root.iterdir()
        if (p / LOCK).exists() or any((e / MANIFEST).exists() for e in element_folders(p))
    )
    if not found:
        raise InvalidArgument(
            f"{root} has no backups; name the folder that was given to nyala backup"
        )
    return found


def element_folders(folder: Path) -> list[Path]:
    """Return the folders of the elements of a table, complete or not, in order of time."""
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if ELEMENT.fullmatch(p.name) and p.is_dir())


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder of a table's backups, for this user only whatever the umask, and hold its lock.

    The mode of a folder that exists stays: whoever owns it may let others read it.

    Raises:
        Unavailable: another process holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    with (folder / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(
                f"another process works on the backups in {folder}; wait for its end, then run this again"
            ) from None
        yield


@contextmanager
def in_use(folder: Path, *, by_removal: bool = False) -> Iterator[None]:
    """Keep elements from being removed while some are read in the block.

    Args:
        folder: of a table's backups.
        by_removal: the block removes elements, so nobody may read them.

    Raises:
        Unavailable: another process reads them, or removes some.
    """
    what = "restores from" if by_removal else "removes some of"
    text = f"another process {what} the backups in {folder}; wait for its end, then run this again"
    with folder_locked(folder, text, shared=not by_removal):
        yield


@contextmanager
def folder_locked(folder: Path, text: str, *, shared: bool = False) -> Iterator[None]:
    """Hold a lock of a folder itself in the block; a file system without such locks gives none.

    Args:
        folder: the folder.
        text: of the error.
        shared: several processes may hold it so.

    Raises:
        Unavailable: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as err:
            if err.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Unavailable(text) from None
        yield
    finally:
        os.close(descriptor)


def put(path: Path, text: str) -> None:
    """Write a small file durably and as a whole: after a crash it has its old content or the new one.

    Args:
        path: of the file.
        text: its content.
    """
    with whole_file(path) as file:
        file.write(text.encode())
    sync_folder(path.parent)


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Open a new file for the block, which gets its name at the end, durable and whole.

    Several processes may write it at the same time, as tries of one task do: the last one replaces the file
    of the others. On an error the file is as it was before.

    Args:
        path: of the file.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def remove_others(folder: Path, names: Collection[str]) -> None:
    """Remove files that tries of tasks have left in a folder.

    Args:
        folder: of an element, or of an export.
        names: of the files that stay.
    """
    for path in folder.iterdir():
        if path.name not in names:
            path.unlink(missing_ok=True)


def remove_element(folder: Path) -> None:
    """Remove an element: first its manifest, so that a crash does not leave one that lacks files."""
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_folder(folder)
    shutil.rmtree(folder)
    sync_folder(folder.parent)


def newest_known(folder: Path) -> str:
    """Return the id of the newest element that was completed; empty: there is none.

    Raises:
        OSError, ValueError, LookupError, TypeError: `latest.json` is damaged.
    """
    path = folder / LATEST
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    return max((p.name for p in element_folders(folder) if (p / MANIFEST).exists()), default="")


def remove_unfinished(folder: Path, oldest: str = "") -> int:
    """Remove what backups that have not ended left, and removals; return the number of folders.

    A folder without a manifest between elements that were completed stays: its manifest was lost.
    Call it under the lock.

    Args:
        folder: of a table's backups.
        oldest: id of the oldest element that stays.
    """
    for path in folder.glob(f".{LATEST}.*.tmp"):  # of a process that was killed
        path.unlink(missing_ok=True)
    try:
        newest = newest_known(folder)
    except (OSError, ValueError, LookupError, TypeError):
        return 0
    unfinished = [
        p
        for p in element_folders(folder)
        if not (p / MANIFEST).exists() and not oldest <= p.name <= newest
    ]
    for path in unfinished:
        remove_element(path)
    return len(unfinished)
