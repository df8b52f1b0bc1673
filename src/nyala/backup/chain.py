"""Chains of backups: a full element and the incremental ones after it; their check against their files."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from nyala.backup.folders import LATEST, MANIFEST, element_folders, put, table_folder, tables_in
from nyala.backup.manifest import FULL, Element, read, time_of
from nyala.common.errors import BadChecksum, Corrupt, InvalidArgument
from nyala.common.hybrid_time import to_datetime

READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Chain:
    """A full element and the incremental ones that continue it.

    Attributes:
        folder: of the table's backups.
        elements: in order of time.
    """

    folder: Path
    elements: tuple[Element, ...]

    @property
    def since(self) -> int:
        """The earliest moment that it can restore, a hybrid time."""
        return self.elements[0].until

    @property
    def until(self) -> int:
        """The latest moment that it can restore, a hybrid time."""
        return self.elements[-1].until


def chains_of(root: Path, table: str) -> list[Chain]:
    """Return all chains of a table, in order of time.

    Args:
        root: folder of the backups.
        table: name of the table.

    Raises:
        InvalidArgument: no backup of this table.
        Corrupt: a manifest is missing or damaged, or an element is missing.
    """
    folder = table_folder(root, table)
    chains = [read_chain(folder, names) for names in chain_names(root, table)]
    _check_latest(folder, chains[-1].elements)
    return chains


def newest_chain(root: Path, table: str) -> Chain:
    """Return the newest chain of a table; damage of others does not matter.

    Args:
        root: folder of the backups.
        table: name of the table.

    Raises:
        InvalidArgument: no backup of this table.
        Corrupt: a manifest of it is missing or damaged, or an element is missing.
    """
    folder = table_folder(root, table)
    chain = read_chain(folder, chain_names(root, table)[-1])
    _check_latest(folder, chain.elements)
    return chain


def chain_names(root: Path, table: str) -> list[list[str]]:
    """Return the ids of the elements of each chain, in order of time; their manifests are not read.

    Args:
        root: folder of the backups.
        table: name of the table.

    Raises:
        InvalidArgument: no backup of this table.
        Corrupt: `latest.json` names an element, and there is none.
    """
    folder = table_folder(root, table)
    names = [p.name for p in element_folders(folder) if (p / MANIFEST).exists()]
    if not names:
        _check_latest(folder, ())
        known = tables_in(root)
        why = (
            "only backups that have not ended; take one: nyala backup"
            if table in known
            else f"backups of: {', '.join(known)}"
        )
        raise InvalidArgument(f"{root} has no backup of table {table!r}; it has {why}")
    chains: list[list[str]] = []
    for name in names:
        if not chains or name.endswith(FULL):
            chains.append([])
        chains[-1].append(name)
    return chains


def read_chain(folder: Path, names: Sequence[str]) -> Chain:
    """Return a chain, or the beginning of one.

    Args:
        folder: of the table's backups.
        names: ids of its elements, in order of time.

    Raises:
        Corrupt: a manifest is damaged, or an element is missing or was replaced.
    """
    elements: list[Element] = []
    for name in names:
        element = read(folder / name)
        before = ("", "") if not elements else (elements[-1].id, elements[-1].checksum)
        if element.id != name or before != (element.previous, element.previous_checksum):
            raise Corrupt(
                f"element {element.previous or element.id} of {folder} is missing or was replaced, and "
                f"{name} continues it; restore its folder from a copy of the backup"
            )
        elements.append(element)
    return Chain(folder, tuple(elements))


def _check_latest(folder: Path, elements: Sequence[Element]) -> None:
    """Refuse a folder whose newest element is missing.

    Args:
        folder: of the table's backups.
        elements: of its newest chain.

    Raises:
        Corrupt: `latest.json` names an element that is not there, or cannot be read.
    """
    path = folder / LATEST
    try:
        latest = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
        known = None if latest is None else (latest["id"], latest["checksum"])
    except (ValueError, KeyError, TypeError) as err:
        raise Corrupt(
            f"{path} cannot be read ({err}); restore it from a copy of the backup"
        ) from err
    if known is None or known in [(e.id, e.checksum) for e in elements]:
        return
    older = (
        bool(elements) and known[0] < elements[0].id
    )  # the next chain was begun, and not recorded yet
    if not (older and (folder / known[0] / MANIFEST).exists()):
        raise Corrupt(
            f"element {known[0]} of {folder} is missing or was replaced; restore its folder from a copy of "
            "the backup"
        )


def note_latest(folder: Path, element: Element) -> None:
    """Record the newest element, so that its loss is noticed.

    Args:
        folder: of the table's backups.
        element: the newest.
    """
    put(folder / LATEST, json.dumps({"id": element.id, "checksum": element.checksum}))


def chain_at(root: Path, table: str, at: int | None) -> Chain:
    """Return the chain that restores a moment, without the elements that it does not need for it.

    Args:
        root: folder of the backups.
        table: name of the table.
        at: hybrid time; None: the latest that can be restored.

    Raises:
        InvalidArgument: no chain contains the moment; the message has those that can be restored.
        Corrupt: a manifest of these elements is damaged, or one is missing; damage of others does not matter.
    """
    if at is None:
        return newest_chain(root, table)
    chains = [[(name, time_of(name)) for name in names] for names in chain_names(root, table)]
    for chain in reversed(chains):
        if chain[0][1] <= at <= chain[-1][1]:
            number = next(n for n, (_, until) in enumerate(chain) if at <= until)
            return read_chain(table_folder(root, table), [name for name, _ in chain[: number + 1]])
    spans = "; ".join(
        f"{c[0][1]} ({shown(c[0][1])}) to {c[-1][1]} ({shown(c[-1][1])})" for c in chains
    )
    raise InvalidArgument(
        f"these backups do not contain the moment {at} ({shown(at)}); they contain: {spans}"
    )


def shown(at: int) -> str:
    """Return a hybrid time as text, in UTC."""
    return to_datetime(at).isoformat(timespec="microseconds") if at else "-"


def check_files(chains: Iterable[Chain], *, contents: bool = True) -> tuple[int, int]:
    """Check every file of some chains: presence and size, and with `contents` bytes and number of rows.

    Args:
        chains: to check.
        contents: read all files, and compare their checksums.

    Returns:
        The number of files, and of their bytes.

    Raises:
        Corrupt: lists the files that are missing or were altered.
    """
    problems: list[str] = []
    files = size = 0
    for chain in chains:
        for element in chain.elements:
            for file in element.files:
                files, size = files + 1, size + file.bytes
                path = chain.folder / element.id / file.name
                problem = _problem(path, file.bytes, file.sha256, file.rows, contents)
                if problem:
                    problems.append(f"{path} {problem}")
    if problems:
        more = f" and {len(problems) - 10} more" if len(problems) > 10 else ""
        raise BadChecksum(
            f"the backup is damaged: {'; '.join(problems[:10])}{more}. Nothing was written. Restore these "
            "files from a copy of the backup, or restore another moment"
        )
    return files, size


def _problem(path: Path, size: int, sha256: str, rows: int, contents: bool) -> str:
    """Return what is wrong with a file; empty: nothing."""
    if not path.is_file():
        return "is missing"
    found = path.stat().st_size
    if found != size:
        return f"has {found} bytes, not {size}"
    if not contents:
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(READ_BYTES):
            digest.update(piece)
    if digest.hexdigest() != sha256:
        return "was altered: its checksum differs"
    try:
        counted = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError) as err:
        return f"is no Parquet file: {err}"
    return "" if counted == rows else f"has {counted} rows, not {rows}"
