"""The audit log of a server: one JSON object a line, each with the hash of the line before (blocking calls).

A line is durable before what it describes is carried out. A file over `FILE_BYTES` is renamed to
`audit.log.<number of its first line>`, and the chain continues in a new one. A torn last line, of a crash, is
removed when the log is opened: what it describes did not happen. `verify` detects each line that was changed,
removed or inserted; lines removed from the end are detected only by a number and hash noted elsewhere.
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nyala.common.errors import Corrupt, InvalidArgument
from nyala.security.files import sync_folder

FILE_NAME = "audit.log"
FILE_BYTES = 16 << 20
FIRST = "0" * 64
"""Hash before the first line of a chain."""


class AuditLog:
    """The audit log in a folder, open for appending by one process.

    Args:
        directory: the folder; exists.
        file_bytes: size in bytes from which a new file is begun.

    Raises:
        Corrupt: the last file is no audit log.
        OSError: it cannot be read or written.
    """

    def __init__(self, directory: str, file_bytes: int = FILE_BYTES) -> None:
        self._path = Path(directory, FILE_NAME)
        self._file_bytes = file_bytes
        self._number, self._hash = 0, FIRST
        self._first = 0  # number of the first line of the file
        self._entered = False  # the entry of the file in its folder is durable
        if self._path.exists():
            self._recover()
        else:
            self._number, self._hash = _end_of(earlier_files(directory))
            self._first = self._number
        self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._size = os.fstat(self._file).st_size

    def append(self, fields: dict[str, Any]) -> None:
        """Append a line; durable on return.

        Args:
            fields: content of the line; JSON values.

        Raises:
            OSError: it was not written, and no part of it stays.
        """
        if self._size >= self._file_bytes:
            self._rotate()
        if not self._entered:
            sync_folder(self._path.parent)
            self._entered = True
        line = {"number": self._number, "before": self._hash, **fields}
        raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.fstat(self._file).st_size != self._size:  # a part of a line that could not be removed
            os.ftruncate(self._file, self._size)
        try:
            written = os.write(self._file, raw)
            if written < len(raw):
                raise OSError(28, "No space left on device")
            os.fdatasync(self._file)
        except OSError:
            with contextlib.suppress(OSError):  # tried again before the next line
                os.ftruncate(self._file, self._size)
            raise
        self._size += len(raw)
        self._number, self._hash = self._number + 1, hashlib.sha256(raw).hexdigest()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _rotate(self) -> None:
        """Begin a new file; what fails is tried again at the next line, and the present file stays open."""
        new = self._path.with_name(f".{FILE_NAME}.new")
        made = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        try:
            if self._path.exists():
                os.rename(self._path, self._path.with_name(f"{FILE_NAME}.{self._first:012d}"))
            os.rename(new, self._path)
        except OSError:
            os.close(made)
            raise
        os.close(self._file)
        self._file, self._size, self._first, self._entered = made, 0, self._number, False

    def _recover(self) -> None:
        raw = self._path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) < len(raw):
            os.truncate(self._path, len(whole))
        if not whole:
            self._number, self._hash = _end_of(earlier_files(str(self._path.parent)))
            self._first = self._number
            return
        lines = whole.splitlines(keepends=True)
        self._first = _number(lines[0], self._path)
        self._number = _number(lines[-1], self._path) + 1
        self._hash = hashlib.sha256(lines[-1]).hexdigest()


def earlier_files(directory: str) -> list[Path]:
    """Return the files of an audit log that are complete, in their order."""
    return sorted(Path(directory).glob(f"{FILE_NAME}.[0-9]*"))


def verify(path: str) -> tuple[int, int, str]:
    """Check the chain of one file of an audit log.

    Returns:
        Numbers of its first and last line, and the hash of the last one, with which the next file begins.

    Raises:
        InvalidArgument: the file cannot be read, or has no line.
        Corrupt: a line was changed, removed or inserted; the message names it.
    """
    first, number, before = -1, -1, ""
    for at, raw in enumerate(_lines(path), 1):
        line = _parsed(raw, path, at)
        if first < 0:
            first = line["number"]
            expected = line["before"] if first else FIRST
        else:
            expected = before
        if line["number"] != first + at - 1 or line["before"] != expected:
            raise Corrupt(
                f"{path}: line {at} does not follow the one before: a line was changed, removed or inserted "
                "at or before it; compare with a copy of the log"
            )
        number, before = line["number"], hashlib.sha256(raw).hexdigest()
    if first < 0:
        raise InvalidArgument(f"{path} has no line: it is empty, or not an audit log")
    return first, number, before


def _lines(path: str) -> Iterator[bytes]:
    try:
        with Path(path).open("rb") as file:
            yield from file
    except OSError as err:
        raise InvalidArgument(f"{path} cannot be read: {err.strerror}") from err


def _parsed(raw: bytes, path: str, at: int) -> dict[str, Any]:
    try:
        line = json.loads(raw)
        if not isinstance(line["number"], int) or not isinstance(line["before"], str):
            raise ValueError
    except (ValueError, KeyError, TypeError) as err:
        raise Corrupt(f"{path}: line {at} is no line of an audit log: it was changed") from err
    if not raw.endswith(b"\n"):
        raise Corrupt(f"{path}: line {at} is incomplete: the server ended while it was written")
    return dict(line)


def _number(raw: bytes, path: Path) -> int:
    return int(_parsed(raw, str(path), 0)["number"])


def _end_of(files: list[Path]) -> tuple[int, str]:
    """Return the next number and hash after the last of some files."""
    if not files:
        return 0, FIRST
    _, last, found = verify(str(files[-1]))
    return last + 1, found


def verify_files(paths: Sequence[str]) -> tuple[int, int, str]:
    """Check files of one audit log, in their order, as `verify` does one.

    Raises:
        InvalidArgument: as `verify`.
        Corrupt: a line was changed, or a file does not continue the one before.
    """
    first, last, found = verify(paths[0])
    for path in paths[1:]:
        with Path(path).open("rb") as file:
            begins = _parsed(file.readline(), path, 1)
        if (begins["number"], begins["before"]) != (last + 1, found):
            raise Corrupt(
                f"{path} does not continue the file named before it: name the files in their order, "
                "audit.log last; if they are, lines were removed"
            )
        _, last, found = verify(path)
    return first, last, found
