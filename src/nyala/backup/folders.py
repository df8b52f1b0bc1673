"""Folders of backups, and durable changes of their files.

A folder of backups has one folder for each table. In it are the elements, one folder each, with data files
and a manifest, which is written last: a folder without it is no element. `latest.json` has id and checksum
of the newest element; the process that adds or removes elements holds `.lock`.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, unquote

from nyala.common.errors import InvalidArgument, Unavailable

MANIFEST = "manifest.json"
LATEST = "latest.json"
LOCK = ".lock"
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
    found = sorted(unquote(p.name) for p in root.iterdir() if (p / LOCK).exists())
    if not found:
        raise InvalidArgument(
            f"{root} has no backups; name the folder that was given to nyala backup"
        )
    return found


def element_folders(folder: Path) -> list[Path]:
    """Return the folders of the elements of a table, complete or not, in order of time."""
    return sorted(p for p in folder.iterdir() if p.is_dir()) if folder.is_dir() else []


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create the folder of a table's backups, and hold its lock.

    Raises:
        Unavailable: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(
                f"another process works on the backups in {folder}; wait for its end, then run this again"
            ) from None
        yield


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put(path: Path, text: str) -> None:
    """Write a small file durably and as a whole: after a crash it has its old content or the new one.

    Args:
        path: of the file.
        text: its content.
    """
    partial = path.with_name(path.name + ".tmp")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def remove_element(folder: Path) -> None:
    """Remove an element: first its manifest, so that a crash does not leave one that lacks files."""
    (folder / MANIFEST).unlink(missing_ok=True)
    sync_folder(folder)
    shutil.rmtree(folder)
    sync_folder(folder.parent)


def remove_unfinished(folder: Path) -> int:
    """Remove the folders of backups that have not ended; return their number. Call it under the lock."""
    unfinished = [p for p in element_folders(folder) if not (p / MANIFEST).exists()]
    for path in unfinished:
        remove_element(path)
    return len(unfinished)
