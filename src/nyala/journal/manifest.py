"""The file `JOURNAL`: a journal's definition, its data files, and their flush point of the group's log.

It is replaced atomically, and written last in a copy. docs/internals/journal.md shows the bytes.
"""

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from nyala.common.errors import AlreadyPresent, Corrupt
from nyala.common.ids import OpId, TableId, TabletId
from nyala.env.files import Files
from nyala.storage.flush_point import StoredFlushPoint
from nyala.storage.sections import Sections, pack

NAME = "JOURNAL"
MAGIC = b"NYjrnMAN"
_BODY, _EXTRA = 1, 2


@dataclass(frozen=True, slots=True)
class JournalInfo:
    """Identity and definition of a journal.

    Attributes:
        tablet_id: also the Raft group's id.
        table_id: id of the journal.
        name: name of the journal.
        version: version of its definition.
        limit_bytes: limit on the size of the valid entries and keys.
    """

    tablet_id: TabletId
    table_id: TableId
    name: str
    version: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class JournalManifest:
    """The journal's files.

    Attributes:
        info: identity and definition.
        flush_point: position in the group's log that the files have.
        last: id of the last change.
        next_file: above the number of every file named.
        files: numbers of the data files, oldest first; the first is the base.
    """

    info: JournalInfo
    flush_point: StoredFlushPoint
    last: int = 0
    next_file: int = 1
    files: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Name of the manifest's file."""
        return NAME

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file."""
        info, flush_point = self.info, self.flush_point
        stored = _Stored(
            tablet_id=info.tablet_id,
            table_id=info.table_id,
            name=info.name,
            version=info.version,
            limit_bytes=info.limit_bytes,
            term=flush_point.op.term,
            index=flush_point.op.index,
            stamp=flush_point.stamp,
            last=self.last,
            next_file=self.next_file,
            files=list(self.files),
        )
        return pack(MAGIC, [(_BODY, msgspec.msgpack.encode(stored)), (_EXTRA, flush_point.extra)])

    def file_names(self) -> list[str]:
        """Return the names of all files that this manifest needs, itself included."""
        return [NAME, *(data_name(number) for number in self.files)]


class _Stored(msgspec.Struct, frozen=True):
    tablet_id: str
    table_id: str
    name: str
    version: int
    limit_bytes: int
    term: int
    index: int
    stamp: int
    last: int
    next_file: int
    files: list[int]


def data_name(number: int) -> str:
    """Return the name of a data file."""
    return f"{number:08d}.jnl"


def decode(data: bytes, path: str) -> JournalManifest:
    """Return the manifest that a file holds.

    Raises:
        Corrupt: damaged, or of another kind or version.
    """
    sections = Sections(memoryview(data), path, MAGIC)
    try:
        stored = msgspec.msgpack.decode(sections.tagged(_BODY), type=_Stored)
    except msgspec.MsgspecError as err:
        raise Corrupt(f"{path} is no manifest that this build understands: {err}") from err
    info = JournalInfo(
        TabletId(stored.tablet_id),
        TableId(stored.table_id),
        stored.name,
        stored.version,
        stored.limit_bytes,
    )
    extra = bytes(sections.tagged(_EXTRA))
    flush_point = StoredFlushPoint(OpId(stored.term, stored.index), stored.stamp, extra)
    return JournalManifest(info, flush_point, stored.last, stored.next_file, tuple(stored.files))


def load(files: Files, directory: str) -> JournalManifest:
    """Read a journal's manifest, and make sure that the files that it names are there.

    Raises:
        Corrupt: it is not there, or damaged, or a file is missing.
    """
    path = f"{directory}/{NAME}"
    existing = set(files.list(directory))
    if NAME not in existing:
        raise Corrupt(
            f"{directory} has no {NAME}: it is no journal, or was damaged; "
            "replace this replica from a healthy one",
            {"path": path},
        )
    found = decode(files.read(path), path)
    missing = [name for name in found.file_names() if name not in existing]
    if missing:
        raise Corrupt(
            f"{directory} lacks {', '.join(missing)}, which its {NAME} names; "
            "replace this replica from a healthy one",
            {"path": f"{directory}/{missing[0]}"},
        )
    return found


def save(files: Files, directory: str, manifest: JournalManifest) -> None:
    """Switch to a manifest: durable on return, and atomic. Its files are durable already.

    Args:
        files: the file system.
        directory: directory of the journal.
        manifest: the new manifest.
    """
    files.write_atomic(f"{directory}/{NAME}", manifest.encode())


def is_saved(files: Files, directory: str, manifest: JournalManifest) -> bool:
    """Return whether a directory has this manifest, durable or not.

    Args:
        files: the file system.
        directory: directory of the journal.
        manifest: that may have been saved.
    """
    return files.read(f"{directory}/{NAME}") == manifest.encode()


def create(files: Files, directory: str, info: JournalInfo) -> JournalManifest:
    """Make the directory of an empty journal and its manifest, durable on return.

    Args:
        files: the file system.
        directory: directory of the journal.
        info: identity and definition of the journal.

    Raises:
        AlreadyPresent: there is a journal in the directory.
    """
    if files.exists(f"{directory}/{NAME}"):
        raise AlreadyPresent(f"{directory} holds a journal already; open it, or remove it first")
    files.make_dir(directory)
    first = JournalManifest(info, StoredFlushPoint())
    save(files, directory, first)
    return first


def remove_unreferenced(
    files: Files, directory: str, manifest: JournalManifest, held: Collection[str] = ()
) -> None:
    """Remove the files that neither the durable manifest names nor a checkpoint holds.

    Args:
        files: the file system.
        directory: directory of the journal.
        manifest: the durable manifest.
        held: names of the files that checkpoints hold.
    """
    referenced = {*manifest.file_names(), *held}
    for name in files.list(directory):
        if name not in referenced:
            files.remove(f"{directory}/{name}")
