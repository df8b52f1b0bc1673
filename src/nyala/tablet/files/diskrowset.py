"""Immutable versions on disk: columns sorted by (key, ins) and a mapped key index, written once.

A rowset is two files, index and data, and any number of `del` files (end_stamps.py); a manifest names them.
The older version of a row is the row before it. docs/internals/formats-tablet.md shows the bytes.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from nyala.common.errors import Corrupt
from nyala.common.keys import encoding as key_bytes
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column, Schema
from nyala.env.files import Files
from nyala.storage.sections import Sections, SectionWriter
from nyala.tablet.files import end_stamps
from nyala.tablet.files.columns import ColumnReader, ColumnWriter, block_ends, cell_sizes
from nyala.tablet.files.end_stamps import EndStamps
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.files.key_order import order_of, take_many
from nyala.tablet.files.manifest import Manifest, RowSetEntry, data_name, del_name, index_name
from nyala.tablet.kernels import key_index, sort_rows
from nyala.tablet.rows.gathering import gather
from nyala.tablet.rows.lifetimes import Lifetimes
from nyala.tablet.rows.rowset import NO_PREV, HashKeys, Int64s, RowSetView, Uint64s

_META, _OFFSETS, _KEYS, _SLOTS, _INS = 1, 2, 3, 4, 5


class _Meta(msgspec.Struct, frozen=True):
    rows: int
    seed: int
    max_ins: int


class DiskRowSet:
    """One rowset of the manifest, open.

    Attributes:
        entry: its entry in the manifest.
        end_stamps: end timestamps of its versions.
        file_bytes: size in bytes of all its files.
        key_range: least and greatest encoded key.
        place: addresses of its arrays for `live_versions`.
    """

    def __init__(
        self, files: Files, directory: str, entry: RowSetEntry, schema: Schema, manifest: Manifest
    ) -> None:
        """Open and verify it.

        Raises:
            Corrupt: a file is damaged, or contradicts the manifest. Data blocks are verified later.
        """
        path = f"{directory}/{index_name(entry.number)}"
        data = files.map(path)
        index = Sections(data, path, FileKind.INDEX)
        index.verify()
        self._index = index
        try:
            meta = msgspec.msgpack.decode(index.tagged(_META), type=_Meta)
        except msgspec.MsgspecError as err:
            raise Corrupt(f"{path} does not say what it holds: {err}") from err
        self.entry = entry
        self.file_bytes = len(data)
        self._ins = index.array(_INS, "<u8")
        self._slots = index.array(_SLOTS, "<u8")
        self._keys = KeyBytes(index.array(_OFFSETS, "<i8"), index.array(_KEYS, np.uint8))
        self._columns = ColumnReader(
            files, f"{directory}/{data_name(entry.number)}", schema.columns
        )
        self.file_bytes += self._columns.file_bytes
        sizes = {meta.rows, len(self._ins), len(self._keys), int(self._columns.starts[-1])}
        if len(sizes) > 1 or not meta.rows or meta.seed != manifest.index_seed:
            raise Corrupt(f"{path} is not the index of its data file: rows {sorted(sizes)}")
        if meta.max_ins > manifest.flush_point.stamp:
            raise Corrupt(f"{path} holds versions above the manifest's flush point")
        ends = np.zeros(meta.rows, np.uint64)
        for number in entry.del_files:
            at = f"{directory}/{del_name(number)}"
            self.file_bytes += end_stamps.read(files, at, ends, manifest.flush_point.stamp)
        self.end_stamps = EndStamps(ends)
        self.key_range = (self._keys.key_at(0), self._keys.key_at(meta.rows - 1))
        self._view = RowSetView(
            rows=meta.rows,
            keys=self._keys,
            ins=self._ins,
            ends=ends,
            slots=self._slots,
            prev=NO_PREV,
            chunks=self._columns,
            is_sorted=True,
            stats=self._columns.stats,
            lifetimes=Lifetimes(
                meta.rows, int(self._ins.min()), meta.max_ins, self.end_stamps.ended
            ),
            key_range=self.key_range,
        )
        arrays = self._slots, self._keys.layout, self._keys.data, ends
        slots, layout, keys, ends_at = (a.ctypes.data for a in arrays)
        self.place = [slots, len(self._slots), layout, keys, meta.rows, 0, ends_at]

    @property
    def rows(self) -> int:
        """Number of versions."""
        return self._view.rows

    @property
    def live(self) -> int:
        """Number of versions that have not ended."""
        return self._view.rows - self.end_stamps.ended.rows

    def check(self, files: Files) -> None:
        """Check that all data read so far were in the files. Raises Corrupt."""
        self._index.check(files)
        self._columns.check(files)

    def view(self) -> RowSetView:
        """Return a view for readers. Lane APPLY; it may be read in any lane."""
        ended = self.end_stamps.ended
        if self._view.lifetimes.ended is not ended:
            was = self._view
            spans = was.lifetimes
            self._view = RowSetView(  # `replace` takes longer than a small write
                was.rows, was.keys, was.ins, was.ends, was.slots, was.prev, was.chunks,
                was.is_sorted, was.stats,
                Lifetimes(spans.rows, spans.first_ins, spans.last_ins, ended), was.key_range,
            )  # fmt: skip
        return self._view


def open_all(files: Files, directory: str, current: Manifest) -> list[DiskRowSet]:
    """Open the rowsets of a manifest. Raises Corrupt as `DiskRowSet`.

    Args:
        files: file system.
        directory: directory of the tablet.
        current: the manifest.
    """
    schema = current.info.schema
    return [DiskRowSet(files, directory, entry, schema, current) for entry in current.rowsets]


def check(files: Files, disks: Iterable[DiskRowSet]) -> None:
    """Check that all data read of some rowsets so far were in their files.

    Called before a result derived from mapped pages is returned; costs nothing if all could be read.

    Raises:
        Corrupt: a file was truncated under this process, or its disk cannot read a page of it.
    """
    if not files.intact:
        for disk in disks:
            disk.check(files)


def write(
    files: Files,
    directory: str,
    number: int,
    sources: Sequence[RowSetView],
    rows: Sequence[Int64s],
    columns: Sequence[Column],
    *,
    compression: str,
    seed: int,
    hash_keys: HashKeys,
    direct_io: bool,
) -> list[Int64s]:
    """Write the index and data files of a new rowset, synced (their names are not). Lane COMPUTE.

    Args:
        files: file system.
        directory: directory of the tablet.
        number: number of the files.
        sources: rowsets whose versions it will hold.
        rows: rows of each source, the rows to take; one at least in all.
        columns: those that it will hold, in order.
        compression: compression of the values.
        seed: seed of the index hash.
        hash_keys: the index hash.
        direct_io: writes of columns bypass the page cache.

    Returns:
        For each source, the new position of each of its rows, or -1.
    """
    taken = np.concatenate(rows)
    keys = key_bytes.concat(
        [s.keys if len(r) == s.rows else s.keys.take(r) for s, r in zip(sources, rows, strict=True)]
    )
    ins = np.concatenate([s.ins[r] for s, r in zip(sources, rows, strict=True)])
    order = order_of(keys, ins)
    which = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
    if len(rows) > 1:
        which = which[order]
    taken, keys, ins = taken[order], take_many(keys, order), ins[order]
    hashes = hash_keys(keys.offsets, keys.data, seed)
    _write_index(files, f"{directory}/{index_name(number)}", keys, ins, hashes, seed)
    _write_data(
        files, f"{directory}/{data_name(number)}", sources, which, taken, columns, compression,
        direct_io=direct_io,
    )  # fmt: skip
    moved = [np.full(s.rows, -1, np.int64) for s in sources]
    for place, to in enumerate(moved):
        positions = np.flatnonzero(which == place)
        to[taken[positions]] = positions
    return moved


def _write_index(
    files: Files, path: str, keys: KeyBytes, ins: Uint64s, hashes: Uint64s, seed: int
) -> None:
    older = np.empty(len(keys), np.uint8)
    sort_rows.same_as_next(keys.layout, keys.data, older)
    newest = np.flatnonzero(older == 0)
    slots = np.zeros(len(newest) * 10 // 7 + 1, np.uint64)
    key_index.link(slots, hashes, newest, np.full(len(newest), -1, np.int64))
    file = files.open_append(path)
    try:
        writer = SectionWriter(FileKind.INDEX, file.append)
        meta = _Meta(rows=len(keys), seed=seed, max_ins=int(ins.max()))
        writer.add(_META, msgspec.msgpack.encode(meta))
        writer.add(_OFFSETS, keys.layout.astype("<i8", copy=False).data)
        writer.add(_KEYS, keys.data.data)
        writer.add(_SLOTS, slots.astype("<u8", copy=False).data)
        writer.add(_INS, ins.astype("<u8", copy=False).data)
        writer.finish()
        file.sync(data_only=False)
    finally:
        file.close()


def _write_data(
    files: Files,
    path: str,
    sources: Sequence[RowSetView],
    which: Int64s,
    rows: Int64s,
    columns: Sequence[Column],
    compression: str,
    *,
    direct_io: bool,
) -> None:
    chunks = [s.chunks for s in sources]
    sizes = []
    for column in columns:
        if column.type in (pa.string(), pa.binary()):
            sizes.append(_sizes(sources, which, rows, column))
    file = files.open_new(path) if direct_io else files.open_append(path)
    try:
        writer = ColumnWriter(SectionWriter(FileKind.DATA, file.append), columns, compression)
        begin = 0
        for end in block_ends(sizes, len(rows)):
            writer.add(gather(chunks, which[begin:end], rows[begin:end], columns))
            begin = end
        writer.finish()
        file.sync(data_only=False)
    finally:
        file.close()


def _sizes(sources: Sequence[RowSetView], which: Int64s, rows: Int64s, column: Column) -> Int64s:
    """Return the bytes of one column in each of the rows to be written."""
    out = np.empty(len(rows), np.int64)
    for number, source in enumerate(sources):
        of_source = which == number if len(sources) > 1 else slice(None)
        lengths = np.empty(source.rows, np.int64)
        starts = source.chunks.starts
        for chunk in range(len(starts) - 1):
            sizes = cell_sizes(source.chunks.column(chunk, column))
            assert sizes is not None, f"column {column.id} has cells of one size"
            lengths[starts[chunk] : starts[chunk + 1]] = sizes
        out[of_source] = lengths[rows[of_source]]
    return out
