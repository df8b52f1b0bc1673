"""The file of a bundle: a zip archive, written once, and read for a summary."""

import os
import zipfile
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.operate.diagnose.collect import MANIFEST
from nyala.web.log_lines import redacted

LARGEST, MOST = 64 << 20, 256 << 20
"""Maximum number of bytes of one file of a bundle that is read, and of all of them."""
T = TypeVar("T")


def write(path: str, collected: Callable[[], Mapping[str, bytes]]) -> Mapping[str, bytes]:
    """Write a bundle into a new file, which only its owner may read; return its content.

    The file is made first, so that a wrong path is an error at once, and removed after an error or interrupt.
    Every text in it is redacted.

    Args:
        path: of the archive.
        collected: returns the files by name.

    Raises:
        AlreadyPresent: the file exists. OSError: it could not be written.
    """
    try:
        made = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise AlreadyPresent(f"{path} exists; name a new file") from None
    try:
        with (
            os.fdopen(made, "wb") as file,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            files = collected()
            for name, content in sorted(files.items()):
                archive.writestr(name, redacted(content.decode("utf-8", "replace")))
    except BaseException:  # an incomplete archive is of no use, and its name would be taken
        with suppress(OSError):
            os.unlink(path)
        raise
    return files


@dataclass(frozen=True, slots=True)
class ServerSummary:
    """One server of a bundle.

    Attributes:
        server: role and uuid.
        address: public address.
        version: of nyala.
        options: those that differ from their defaults, as name=value.
        warnings: lines of the log with a warning or an error, the newest last.
    """

    server: str
    address: str
    version: str
    options: tuple[str, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BundleSummary:
    """Summary of a bundle.

    Attributes:
        made_at: time, UTC.
        missing: what could not be collected, with the reason, by name.
        problems: of ksck.
        steps: findings of `nyala doctor`, by name of the step.
        operations: number of operations of the masters in flight.
        servers: those that answered.
    """

    made_at: str
    missing: Mapping[str, str]
    problems: tuple[str, ...]
    steps: Mapping[str, str]
    operations: int
    servers: tuple[ServerSummary, ...]


class _Manifest(msgspec.Struct):
    made_at: str
    missing: dict[str, str]


class _Problems(msgspec.Struct):
    problems: list[str] = []


class _Step(msgspec.Struct):
    name: str
    finding: str


class _Operations(msgspec.Struct):
    operations: list[Any] = []
    longOperations: list[Any] = []


class _Info(msgspec.Struct):
    address: str = ""
    version: str = ""


class _Option(msgspec.Struct):
    name: str
    value: str
    differs: str


class _Options(msgspec.Struct):
    rows: list[_Option] = []


class _Line(msgspec.Struct):
    line: str


class _Log(msgspec.Struct):
    rows: list[_Line] = []


def read(path: str) -> BundleSummary:
    """Read a bundle, which may come from anybody. Characters that change a terminal are shown as escapes.

    Raises:
        InvalidArgument: the file is no bundle. OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _summary(_Files(archive))
    except (zipfile.BadZipFile, zlib.error, ValueError, KeyError, RuntimeError, EOFError) as err:
        raise InvalidArgument(
            f"{path} is not a bundle of nyala diagnose, or is damaged: {err}; make a new one"
        ) from err


class _Files:
    """Files of an archive, each decoded when it is read. Foreign files are never unpacked."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._left = MOST
        self.names = archive.namelist()

    def get(self, name: str, kind: type[T]) -> T:
        """Return the content of a file. Raises KeyError, ValueError and errors of `zipfile`."""
        info = self._archive.getinfo(name)
        self._left -= info.file_size
        if info.file_size > LARGEST or self._left < 0:
            raise ValueError(f"{name} is larger than a file of a bundle")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is compressed by another method")
        with self._archive.open(info) as file:
            return msgspec.json.decode(file.read(info.file_size + 1), type=kind)

    def page(self, name: str, kind: type[T], missing: dict[str, str]) -> T:
        """Return the content of a file that may be missing, or may have something else: then an empty one.

        Args:
            name: of the file.
            kind: type of its content.
            missing: gets the reason if the file has something else.
        """
        if name not in self.names:
            return kind()
        try:
            return self.get(name, kind)
        except msgspec.DecodeError as err:
            missing[name] = f"not readable: {err}"
            return kind()


def _summary(files: _Files) -> BundleSummary:
    manifest = files.get(MANIFEST, _Manifest)
    missing = dict(manifest.missing)
    ops = files.page("ops.json", _Operations, missing)
    steps = files.page("doctor.json", list[_Step], missing)
    folders = sorted({n.rpartition("/")[0] for n in files.names if n.startswith("servers/")})
    problems = files.page("ksck.json", _Problems, missing).problems
    servers = tuple(_server(folder, files, missing) for folder in folders)
    return BundleSummary(
        _shown(manifest.made_at),
        {_shown(name): _shown(reason) for name, reason in missing.items()},
        tuple(map(_shown, problems)),
        {_shown(step.name): _shown(step.finding) for step in steps},
        len(ops.operations) + len(ops.longOperations),
        servers,
    )


def _server(folder: str, files: _Files, missing: dict[str, str]) -> ServerSummary:
    info = files.page(f"{folder}/info.json", _Info, missing)
    options = files.page(f"{folder}/options.json", _Options, missing).rows
    lines = files.page(f"{folder}/log.json", _Log, missing).rows
    return ServerSummary(
        _shown(folder.rpartition("/")[2]),
        _shown(info.address),
        _shown(info.version),
        tuple(_shown(f"{o.name}={o.value}") for o in options if o.differs == "yes"),
        tuple(_shown(row.line) for row in lines if _level(row.line) in "WEC"),
    )


def _shown(text: str) -> str:
    """Return a text with control characters and the like as escapes, so that it can be printed."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _level(line: str) -> str:
    """Return the letter of a line's level; X: it has none."""
    words = line.split(" ", 3)
    return words[2] if len(words) == 4 and len(words[2]) == 1 else "X"
