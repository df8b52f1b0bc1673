"""Manifest of one element of a backup: its definition of the table, its times, its files. JSON."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nyala.backup.definition import SavedDefinition, schema_from_json, schema_to_json
from nyala.backup.folders import MANIFEST, put
from nyala.common.errors import BadChecksum, BadVersion, Corrupt, NyalaError
from nyala.common.schema import Schema

FORMAT = 1
"""Version of the format; a manifest of another one is refused."""
PLAIN = (
    "id", "kind", "table", "table_id", "since", "until", "previous", "previous_checksum", "rows_at_end",
)  # fmt: skip
"""Attributes of an element that are JSON as they are."""
FILE_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}\.parquet")
"""Name of a data file, which is in the folder of its element."""
FULL, INCREMENTAL = "full", "incremental"


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One Parquet file.

    Attributes:
        name: in the folder of its element.
        tablet: id of the tablet whose rows it has.
        rows: their number.
        bytes: size of the file.
        sha256: of its bytes, hexadecimal.
        dropped_at: hybrid time at which the tablet's range was dropped; 0: it was not.
    """

    name: str
    tablet: str
    rows: int
    bytes: int
    sha256: str
    dropped_at: int = 0


@dataclass(frozen=True, slots=True)
class Interval:
    """Rows of an interval of hybrid time in which the columns did not change.

    Attributes:
        since: exclusive lower end of the changes; 0: the rows of a snapshot at `through`.
        through: inclusive upper end.
        schema: columns of the table then.
        files: its files.
    """

    since: int
    through: int
    schema: Schema
    files: tuple[BackupFile, ...]


@dataclass(frozen=True, slots=True)
class Element:
    """One backup of one table.

    Attributes:
        id: name of its folder.
        kind: "full", or "incremental".
        table: name of the table.
        table_id: id of the table.
        since: hybrid time after which it has the changes; 0: full.
        until: hybrid time of the snapshot, or through which it has the changes.
        previous: id of the element before it; empty: full.
        previous_checksum: of that element's manifest.
        rows_at_end: number of rows of the table at `until`.
        definition: of the table, apart from its columns.
        intervals: in order of time.
        checksum: of this manifest.
    """

    id: str
    kind: str
    table: str
    table_id: str
    since: int
    until: int
    previous: str
    previous_checksum: str
    rows_at_end: int
    definition: SavedDefinition
    intervals: tuple[Interval, ...]
    checksum: str = ""

    @property
    def files(self) -> list[BackupFile]:
        """All of its files."""
        return [f for s in self.intervals for f in s.files]

    @property
    def bytes(self) -> int:
        """Size of its files."""
        return sum(f.bytes for f in self.files)


def element_id(kind: str, until: int) -> str:
    """Return the id of an element; ids sort by time."""
    return f"{until:020d}-{kind}"


def time_of(name: str) -> int:
    """Return the time of an id, `Element.until`."""
    return int(name.partition("-")[0])


def write(folder: Path, element: Element) -> Element:
    """Write a manifest durably, which completes its element; return it with its checksum.

    Args:
        folder: of the element.
        element: whose manifest it is.
    """
    fields = _fields(element)
    checksum = _checksum(fields)
    put(folder / MANIFEST, json.dumps({"checksum": checksum, **fields}, indent=1))
    return read(folder)


def read(folder: Path) -> Element:
    """Read the manifest of an element.

    Raises:
        Corrupt: it is missing or damaged.
        BadVersion: another version wrote it.
    """
    path = folder / MANIFEST
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        version, checksum = fields["format"], fields.pop("checksum")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as err:
        raise Corrupt(
            f"{path} cannot be read as a manifest ({err}); restore the file from a copy of the backup"
        ) from err
    if version != FORMAT:
        raise BadVersion(
            f"{path} has format {version!r}, and this release reads format {FORMAT}: use the release of "
            "nyala that wrote it"
        )
    if checksum != _checksum(fields):
        raise BadChecksum(
            f"{path} was altered: its content does not match its checksum; restore the file from a copy of "
            "the backup"
        )
    try:
        return _element(fields, checksum)
    except (NyalaError, ValueError, KeyError, TypeError) as err:
        raise Corrupt(f"{path} is no manifest: {err!r}") from err


def _checksum(fields: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def _fields(element: Element) -> dict[str, Any]:
    return {
        "format": FORMAT,
        **{name: getattr(element, name) for name in PLAIN},
        "definition": element.definition.to_json(),
        "intervals": [
            {
                "since": s.since,
                "through": s.through,
                "columns": schema_to_json(s.schema),
                "files": [{n: getattr(f, n) for n in BackupFile.__slots__} for f in s.files],
            }
            for s in element.intervals
        ],
    }


def _element(fields: dict[str, Any], checksum: str) -> Element:
    plain = {name: fields[name] for name in PLAIN}
    intervals = tuple(
        Interval(
            s["since"],
            s["through"],
            schema_from_json(s["columns"]),
            tuple(_file(f) for f in s["files"]),
        )
        for s in fields["intervals"]
    )
    definition = SavedDefinition.from_json(fields["definition"])
    return Element(**plain, definition=definition, intervals=intervals, checksum=checksum)


def _file(fields: dict[str, Any]) -> BackupFile:
    """Return a file of a manifest, whose name leads nowhere else.

    Raises:
        ValueError: it has another name than those that are written.
    """
    made = BackupFile(**fields)
    if not FILE_NAME.fullmatch(made.name):
        raise ValueError(f"{made.name[:80]!r} is not the name of a data file")
    return made
