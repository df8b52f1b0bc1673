"""The manifest: a tablet's files and their flush point of the group's log, in one atomically replaced file.

Invariant: the rowsets and `del` files of a manifest contain no stamp above its flush point.
docs/internals/formats-tablet.md shows the bytes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from nyala.common.errors import AlreadyPresent, Corrupt, NyalaError
from nyala.common.ids import ColumnId, OpId, TableId, TabletId
from nyala.common.partitioning.partition import PartitionSchema, TabletPartition
from nyala.common.schema import Schema
from nyala.common.types import arrow_type, type_name
from nyala.env.files import Files
from nyala.storage.flush_point import StoredFlushPoint
from nyala.storage.sections import Sections, pack
from nyala.tablet.files import dropped_columns, stored_schema
from nyala.tablet.files.dropped_columns import DroppedColumn
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.files.stored_schema import StoredSchema
from nyala.tablet.files.stored_stages import StoredStages, stage_name

NAME = "MANIFEST"
MAX_RANGES = 256
"""Maximum number of changes of ranges that a tablet keeps; beyond it the two oldest become one."""
_BODY, _EXTRA, _RANGES, _STAGES, _DROPPED = 1, 2, 3, 4, 5
UNKNOWN = -1
"""Time of an alteration that an earlier release applied, which did not record it."""


@dataclass(frozen=True, slots=True)
class TabletInfo:
    """Identity and schema of a tablet. Only `replicated_ops.SchemaOp` changes name, schema and options.

    Attributes:
        tablet_id: also the Raft group's id.
        table_id: id of the table.
        table_name: name of the table, for messages and pages.
        schema: the table's columns.
        partition_schema: how the table is partitioned.
        partition: this tablet's part of it.
        options: table options as text; `compression` is `none` (default), `lz4` or `zstd`.
        ranges: (schema version, stamp) of the changes of the table's ranges that it has followed, oldest
            first: what it was created with has stamp 0, and the newest `MAX_RANGES` are kept.
        retired_at: when its range was dropped: its rows end there; 0: it was not.
        dropped: dropped columns whose values can still be read, in the order of their drops.
        columns_from: hybrid time of the last alteration here of the columns that reads see, by their names,
            their order or their nullability; 0: none since its creation; `UNKNOWN`.
    """

    tablet_id: TabletId
    table_id: TableId
    table_name: str
    schema: Schema
    partition_schema: PartitionSchema = field(default_factory=PartitionSchema)
    partition: TabletPartition = field(default_factory=TabletPartition)
    options: Mapping[str, str] = field(default_factory=dict)
    ranges: tuple[tuple[int, int], ...] = ()
    retired_at: int = 0
    dropped: tuple[DroppedColumn, ...] = ()
    columns_from: int = 0

    def newer_ranges(self, known: int, at: int) -> int:
        """Return the version of the newest ranges in force at a time, if a reader does not know them; else 0.

        Args:
            known: the version of the ranges from which the read was planned.
            at: hybrid time of the read.
        """
        return max((v for v, stamp in self.ranges if v > known and stamp <= at), default=0)


class RowSetEntry(msgspec.Struct, frozen=True):
    """One disk rowset.

    Attributes:
        number: names its two files.
        del_files: numbers of its `del` files, oldest first; the key `marks` of the stored form.
    """

    number: int
    del_files: tuple[int, ...] = msgspec.field(default=(), name="marks")


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tablet's files.

    Attributes:
        info: definition of the tablet.
        flush_point: position in the log that the files represent.
        horizon: the earliest time that can still be read; history below it was dropped.
        index_seed: seed of the hash in the key indexes.
        next_file: above the number of every file named.
        rowsets: in the order in which they are read.
        retired: types of dropped columns, for entries written before the drop.
        stages: transactions that the tablet knows.
    """

    info: TabletInfo
    flush_point: StoredFlushPoint
    horizon: int
    index_seed: int
    next_file: int
    rowsets: tuple[RowSetEntry, ...] = ()
    retired: Mapping[ColumnId, pa.DataType] = field(default_factory=dict)
    stages: StoredStages = field(default_factory=StoredStages)

    @property
    def cut_stamp(self) -> int:
        """A time at or above every stamp in the files, and below those of all later versions and ends.

        It is that of the flush point, unless a transaction is prepared there: its commit time may be below.
        """
        return self.stages.written if self.stages.prepare_times else self.flush_point.stamp

    @property
    def name(self) -> str:
        """Name of the manifest's file."""
        return NAME

    def encode(self) -> bytes:
        """Return the bytes of the manifest's file."""
        return encode(self)

    def file_names(self) -> list[str]:
        """Return the names of all files that this manifest needs, itself included."""
        names = [NAME]
        for entry in self.rowsets:
            names += [index_name(entry.number), data_name(entry.number)]
            names += [del_name(number) for number in entry.del_files]
        return names + [stage_name(number) for number in self.stages.files]


def index_name(number: int) -> str:
    """Return the name of a rowset's index file."""
    return f"{number:08d}.idx"


def data_name(number: int) -> str:
    """Return the name of a rowset's data file."""
    return f"{number:08d}.dat"


def del_name(number: int) -> str:
    """Return the name of a `del` file."""
    return f"{number:08d}.del"


def names_of(number: int) -> tuple[str, str, str, str]:
    """Return all names of files that a number may have."""
    return index_name(number), data_name(number), del_name(number), stage_name(number)


class _Stored(msgspec.Struct, frozen=True):
    tablet_id: str
    table_id: str
    table_name: str
    schema: StoredSchema
    retired: dict[int, str]
    partition_schema: PartitionSchema
    partition: TabletPartition
    options: dict[str, str]
    term: int
    index: int
    stamp: int
    horizon: int
    index_seed: int
    next_file: int
    rowsets: list[RowSetEntry]


class _StoredRanges(msgspec.Struct, frozen=True, omit_defaults=True):
    followed: list[tuple[int, int]]
    retired_at: int
    columns_from: int = UNKNOWN


def encode(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest file."""
    info = manifest.info
    stored = _Stored(
        tablet_id=info.tablet_id,
        table_id=info.table_id,
        table_name=info.table_name,
        schema=stored_schema.store(info.schema),
        retired={i: type_name(kind) for i, kind in sorted(manifest.retired.items())},
        partition_schema=info.partition_schema,
        partition=info.partition,
        options=dict(sorted(info.options.items())),
        term=manifest.flush_point.op.term,
        index=manifest.flush_point.op.index,
        stamp=manifest.flush_point.stamp,
        horizon=manifest.horizon,
        index_seed=manifest.index_seed,
        next_file=manifest.next_file,
        rowsets=list(manifest.rowsets),
    )
    sections = [(_BODY, msgspec.msgpack.encode(stored)), (_EXTRA, manifest.flush_point.extra)]
    if info.ranges or (info.schema.version and info.columns_from != UNKNOWN):
        ranges = _StoredRanges(list(info.ranges), info.retired_at, info.columns_from)
        sections.append((_RANGES, msgspec.msgpack.encode(ranges)))
    magic = FileKind.MANIFEST
    if manifest.stages != StoredStages():
        sections.append((_STAGES, msgspec.msgpack.encode(manifest.stages)))
        magic = FileKind.MANIFEST_2
    if info.dropped:
        sections.append((_DROPPED, dropped_columns.pack(info.dropped)))
        magic = FileKind.MANIFEST_3
    return pack(magic, sections)


def decode(data: bytes, path: str) -> Manifest:
    """Return the manifest that a file holds.

    Raises:
        Corrupt: damaged, or of another kind or version.
    """
    found = bytes(data[: len(FileKind.MANIFEST)])
    later = (FileKind.MANIFEST_2, FileKind.MANIFEST_3)
    magic = found if found in later else FileKind.MANIFEST
    sections = Sections(memoryview(data), path, magic)
    body, extra = sections.tagged(_BODY), bytes(sections.tagged(_EXTRA))
    ranges, stages = _StoredRanges([], 0), StoredStages()
    dropped: tuple[DroppedColumn, ...] = ()
    try:
        stored = msgspec.msgpack.decode(body, type=_Stored)
        if _RANGES in sections.tags:
            ranges = msgspec.msgpack.decode(sections.tagged(_RANGES), type=_StoredRanges)
        if _STAGES in sections.tags:
            stages = msgspec.msgpack.decode(sections.tagged(_STAGES), type=StoredStages)
        if _DROPPED in sections.tags:
            dropped = dropped_columns.unpack(sections.tagged(_DROPPED))
        schema = stored_schema.load(stored.schema)
        retired = {ColumnId(i): arrow_type(name) for i, name in stored.retired.items()}
    except (msgspec.MsgspecError, NyalaError) as err:
        raise Corrupt(f"{path} is no manifest that this build understands: {err}") from err
    info = TabletInfo(
        tablet_id=TabletId(stored.tablet_id),
        table_id=TableId(stored.table_id),
        table_name=stored.table_name,
        schema=schema,
        partition_schema=stored.partition_schema,
        partition=stored.partition,
        options=stored.options,
        ranges=tuple(ranges.followed),
        retired_at=ranges.retired_at,
        dropped=dropped,
        columns_from=ranges.columns_from if schema.version else 0,
    )
    return Manifest(
        info=info,
        flush_point=StoredFlushPoint(OpId(stored.term, stored.index), stored.stamp, extra),
        horizon=stored.horizon,
        index_seed=stored.index_seed,
        next_file=stored.next_file,
        rowsets=tuple(stored.rowsets),
        retired=retired,
        stages=stages,
    )


def load(files: Files, directory: str) -> Manifest:
    """Read a tablet's manifest.

    Raises:
        Corrupt: there is none, or it is damaged.
    """
    path = f"{directory}/{NAME}"
    if not files.exists(path):
        raise Corrupt(
            f"{directory} has no {NAME}: it is no tablet, or was damaged; "
            "replace this replica from a healthy one",
            {"path": path},
        )
    return decode(files.read(path), path)


def save(files: Files, directory: str, manifest: Manifest) -> None:
    """Switch to a manifest: durable on return, and atomic. Its files are durable already.

    Args:
        files: file system.
        directory: directory of the tablet.
        manifest: the tablet's.
    """
    files.write_atomic(f"{directory}/{NAME}", encode(manifest))


def is_saved(files: Files, directory: str, manifest: Manifest) -> bool:
    """Return whether a directory has this manifest, durable or not.

    Args:
        files: file system.
        directory: directory of the tablet.
        manifest: that may have been saved.
    """
    return files.read(f"{directory}/{NAME}") == encode(manifest)


def check_files(files: Files, directory: str, manifest: Manifest) -> None:
    """Check that every file of the manifest exists.

    Args:
        files: file system.
        directory: directory of the tablet.
        manifest: the tablet's.

    Raises:
        Corrupt: one is missing.
    """
    existing = set(files.list(directory))
    missing = [name for name in manifest.file_names() if name not in existing]
    if missing:
        raise Corrupt(
            f"{directory} lacks {', '.join(missing)}, which its {NAME} names; "
            "replace this replica from a healthy one",
            {"path": f"{directory}/{missing[0]}"},
        )


def create(files: Files, directory: str, info: TabletInfo, index_seed: int) -> Manifest:
    """Make the directory of an empty tablet and its manifest, durable on return.

    Args:
        files: file system.
        directory: directory of the tablet.
        info: the tablet's identity and schema.
        index_seed: seed of the hash in the key indexes.

    Raises:
        AlreadyPresent: there is a tablet in the directory.
    """
    if files.exists(f"{directory}/{NAME}"):
        raise AlreadyPresent(f"{directory} holds a tablet already; open it, or remove it first")
    files.make_dir(directory)
    first = Manifest(info, StoredFlushPoint(), horizon=0, index_seed=index_seed, next_file=1)
    save(files, directory, first)
    return first


def remove_unreferenced(
    files: Files, directory: str, manifest: Manifest, held: Collection[str] = ()
) -> None:
    """Remove files that neither the (durable) manifest nor a checkpoint names, such as compacted rowsets.

    Args:
        files: file system.
        directory: directory of the tablet.
        manifest: the tablet's.
        held: names of files kept for checkpoints.
    """
    referenced = {*manifest.file_names(), *held}
    for name in files.list(directory):
        if name not in referenced:
            files.remove(f"{directory}/{name}")
