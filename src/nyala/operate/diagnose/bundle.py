"""The file of a bundle: a zip archive, written once, and read for a summary."""

import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.operate.diagnose.collect import MANIFEST
from nyala.web.log_lines import redacted

LARGEST = 64 << 20
"""Maximum number of bytes of one file of a bundle that is read."""


def write(path: str, files: Mapping[str, bytes]) -> None:
    """Write a bundle into a new file. Every text in it is redacted.

    Args:
        path: of the archive.
        files: by name.

    Raises:
        AlreadyPresent: the file exists. OSError: it could not be written.
    """
    try:
        with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(files.items()):
                archive.writestr(name, redacted(content.decode("utf-8", "replace")))
    except FileExistsError:
        raise AlreadyPresent(f"{path} exists; name a new file") from None


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


def read(path: str) -> BundleSummary:
    """Read a bundle.

    Raises:
        InvalidArgument: the file is no bundle. OSError: it cannot be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = {i.filename for i in archive.infolist() if i.file_size <= LARGEST}
            files = {n: json.loads(archive.read(n)) for n in names if n.endswith(".json")}
        return _summary(files)
    except (zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError) as err:
        raise InvalidArgument(
            f"{path} is not a bundle of nyala diagnose, or is damaged: {err}; make a new one"
        ) from err


def _summary(files: Mapping[str, Any]) -> BundleSummary:
    manifest, ops = files[MANIFEST], files.get("ops.json", {})
    folders = sorted({n.rpartition("/")[0] for n in files if n.startswith("servers/")})
    return BundleSummary(
        manifest["made_at"],
        manifest["missing"],
        tuple(files.get("ksck.json", {}).get("problems", ())),
        {step["name"]: step["finding"] for step in files.get("doctor.json", ())},
        len(ops.get("operations", ())) + len(ops.get("longOperations", ())),
        tuple(_server(folder, files) for folder in folders),
    )


def _server(folder: str, files: Mapping[str, Any]) -> ServerSummary:
    info = files[f"{folder}/info.json"]
    options = files.get(f"{folder}/options.json", {"rows": ()})["rows"]
    lines = [row["line"] for row in files.get(f"{folder}/log.json", {"rows": ()})["rows"]]
    return ServerSummary(
        folder.rpartition("/")[2],
        info.get("address", ""),
        info.get("version", ""),
        tuple(f"{o['name']}={o['value']}" for o in options if o["differs"] == "yes"),
        tuple(line for line in lines if _level(line) in "WEC"),
    )


def _level(line: str) -> str:
    """Return the letter of a line's level; X: it has none."""
    words = line.split(" ", 3)
    return words[2] if len(words) == 4 and len(words[2]) == 1 else "X"
