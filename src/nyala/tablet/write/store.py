"""The rowsets of a tablet in lane APPLY, and the search of keys' live versions.

Rules: everything here runs in lane APPLY. Readers get tuples of `RowSetView`s, published whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column, Schema
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.diskrowset import DiskRowSet
from nyala.tablet.files.dropped_columns import readable
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.kernels import key_bytes, live_versions
from nyala.tablet.rows.rowset import HashKeys, Int64s, RowSetView, Uint64s
from nyala.tablet.write.memrowset import MemRowSet
from nyala.tablet.write.stages import Stages

RowSet = MemRowSet | DiskRowSet
_MODIFIES = (
    RowOp.UPSERT, RowOp.UPSERT_IGNORE, RowOp.UPDATE, RowOp.UPDATE_IGNORE, RowOp.MIXED,
)  # fmt: skip
_MAX_KINDS = 64
"""Maximum number of cached kinds of write."""


@dataclass(frozen=True, slots=True, eq=False)
class WriteKind:
    """Properties shared by all writes with one operation and the same columns.

    Attributes:
        fields: fields of their batches.
        whole: their batches have the table's columns in order, and nothing else.
        places: position in the batch of each column of the table.
        values: columns that are not in the key, and their positions in the schema.
        lacking: positions in the schema of columns that a new row would lack, and has to have.
        frozen: those of `values` that are immutable, if the writes may change a row.
        absent: columns of the table that they do not give.
        mixed: each row has its own op.
    """

    fields: pa.Schema
    whole: bool
    places: Mapping[ColumnId, int]
    values: tuple[tuple[int, Column], ...]
    lacking: tuple[int, ...]
    frozen: tuple[tuple[int, Column], ...]
    absent: tuple[Column, ...]
    mixed: bool

    @staticmethod
    def of(write: WriteOp, fields: pa.Schema, schema: Schema) -> "WriteKind":
        """Return the kind of a write.

        Args:
            write: the operation.
            fields: columns of its batch.
            schema: schema of the tablet.
        """
        places = {i: n for n, i in enumerate(write.column_ids) if i in schema.by_id}
        every = list(enumerate(schema.columns))
        values = tuple((n, c) for n, c in every[len(schema.key_ids) :] if c.id in places)
        absent = [(n, c) for n, c in every if c.id not in places]
        frozen = tuple((n, c) for n, c in values if c.immutable)
        return WriteKind(
            fields=fields,
            whole=[f.name for f in fields] == [str(c.id) for _, c in every],
            places=places,
            values=values,
            lacking=tuple(n for n, c in absent if not c.nullable and c.default is None),
            frozen=frozen if write.op in _MODIFIES else (),
            absent=tuple(c for _, c in absent),
            mixed=write.op is RowOp.MIXED,
        )


@dataclass(slots=True, eq=False)  # not frozen: creation would take four times as long
class Located:
    """Positions of the live versions of keys.

    Attributes:
        rowsets: [0] is the memory rowset that takes new versions.
        places: addresses of their arrays, for `live_versions`.
        which: position in `rowsets` of each key's live version, or -1.
        rows: row of that version in its rowset.
        newest_in_memory: row of each key's newest version in `rowsets[0]`, live or not, or -1.
        live: number of keys with a live version.
    """

    rowsets: Sequence[RowSet]
    places: Int64s
    which: Int64s
    rows: Int64s
    newest_in_memory: Int64s
    live: int

    @property
    def views(self) -> tuple[RowSetView, ...]:
        """Of the rowsets."""
        return tuple(r.view() for r in self.rowsets)


class Store:
    """Newest state of a tablet: its definition and its rowsets.

    Args:
        info: what the tablet is.
        seed: seed of the index hash.
        hash_keys: the index hash.
        disks: in the manifest's order.
        retired: types of the columns that were dropped.
        stages: what the tablet knows of transactions.

    Attributes:
        info: what the tablet is now.
        retired: types of the columns that were dropped; replaced, never changed.
        seed: seed of the index hash.
        hash_keys: the index hash.
        mem: takes new versions.
        frozen: memory rowsets that wait for a flush, oldest first.
        disks: in the manifest's order.
        live: how many rows are live now.
        stages: what the tablet knows of transactions.
    """

    def __init__(
        self,
        info: TabletInfo,
        seed: int,
        hash_keys: HashKeys,
        disks: Sequence[DiskRowSet],
        retired: Mapping[ColumnId, pa.DataType],
        stages: Stages,
    ) -> None:
        self.retired = retired
        self.stages = stages
        self.seed = seed
        self.hash_keys = hash_keys
        self.mem = MemRowSet(info.schema.columns)
        self.frozen: list[MemRowSet] = []
        self.disks = list(disks)
        ended = info.retired_at > 0
        self.live = 0 if ended else sum(d.rows - d.end_stamps.ended.rows for d in disks)
        self._named: list[RowSet] = []
        self._placed: list[RowSet] = []
        self._places = np.empty((0, len(live_versions.PLACE)), np.int64)
        self._take(info)

    def _take(self, info: TabletInfo) -> None:
        columns = info.schema.columns
        self.info = info
        self._kinds: dict[tuple[int, tuple[ColumnId, ...]], WriteKind] = {}
        self.row_schema = pa.schema([pa.field(str(c.id), c.type) for c in columns])
        defaults = [
            pa.nulls(1, c.type) if c.default is None else pa.repeat(c.default, 1) for c in columns
        ]
        self.defaults = pa.RecordBatch.from_arrays(defaults, schema=self.row_schema)

    @property
    def schema(self) -> Schema:
        """Of the table now."""
        return self.info.schema

    def alter(self, info: TabletInfo) -> None:
        """Change the schema to that of `info`; existing versions are not modified."""
        old, new = self.schema, info.schema
        dropped = {c.id: c.type for c in old.columns if c.id not in new.by_id}
        self.retired = {**self.retired, **dropped}
        self._take(info)
        if [c.id for c in old.columns] != [c.id for c in new.columns]:
            self.freeze()
            self.mem = MemRowSet(new.columns)  # also where there was nothing to freeze

    def forget_dropped(self, horizon: int) -> None:
        """Forget the dropped columns that no read at or above a horizon can name."""
        kept = readable(self.info.dropped, horizon)
        if len(kept) < len(self.info.dropped):
            self.info = replace(self.info, dropped=kept)

    def kind_of(self, write: WriteOp) -> WriteKind:
        """Return the properties of all writes with this header.

        Raises:
            Corrupt: it names columns that the table does not have.
        """
        key = (int(write.op), write.column_ids)
        found = self._kinds.get(key)
        if found is None:
            fields = replicated_ops.fields_of(write, self.schema, self.retired)
            found = WriteKind.of(write, fields, self.schema)
            if len(self._kinds) >= _MAX_KINDS:
                self._kinds.clear()
            self._kinds[key] = found
        return found

    def hashes(self, keys: KeyBytes) -> Uint64s:
        """Return the index hash of each key."""
        return self.hash_keys(keys.offsets, keys.data, self.seed)

    def freeze(self) -> None:
        """Start a new memory rowset for new versions; ends in the old one are recorded from now on."""
        if self.mem.rows:
            self.mem.end_stamps.recording = True
            self.frozen.append(self.mem)
            self.mem = MemRowSet(self.schema.columns)

    def adopt(self, rows: MemRowSet) -> None:
        """Add a memory rowset whose versions begin after all others. It takes no new versions."""
        self.freeze()
        rows.end_stamps.recording = True
        self.frozen.append(rows)

    def remove_replaced(self) -> None:
        """Remove replaced rowsets; their files are removed when they are no longer mapped."""
        self._named, self._placed = [], []

    def views(self) -> tuple[RowSetView, ...]:
        """Return all rowsets for readers, oldest first."""
        rowsets: list[RowSet] = [*self.disks, *self.frozen, self.mem]
        return tuple(r.view() for r in rowsets if r.rows)

    def memory_bytes(self) -> int:
        """Memory that a flush would free."""
        held = sum(m.data_bytes for m in (*self.frozen, self.mem))
        held += self.stages.memory_bytes + self.stages.built_bytes
        return held + sum(d.end_stamps.pending_bytes for d in self.disks)

    def locate(self, keys: KeyBytes, hashes: Uint64s, wanted: Int64s) -> Located:
        """Find the live version of some distinct keys.

        Args:
            keys: keys of a batch.
            hashes: hashes of `keys`.
            wanted: the rows of `keys` to find.
        """
        if [*self.disks, *self.frozen, self.mem] != self._named:
            self._place()
        rowsets = self._placed
        self._places[0] = self.mem.place  # the others' do not change
        skip = np.zeros(len(rowsets), np.uint8)
        if len(wanted):
            low, high = _ends(keys)
            for number, rowset in enumerate(rowsets):
                within = rowset.key_range
                may_have = within is not None and within[0] <= high and low <= within[1]
                if not may_have or (number and not rowset.live):  # the first one's are chained to
                    skip[number] = 1
            self.mem.widen(low, high)
        which, rows, newest = np.empty((3, len(wanted)), np.int64)
        live = live_versions.find_live(
            self._places, skip, keys.layout, keys.data, hashes, wanted, which, rows, newest
        )
        return Located(rowsets, self._places, which, rows, newest, live)

    def _place(self) -> None:
        """Order the rowsets for searches: a live key is in one of them, most likely in a large one."""
        self._named = [*self.disks, *self.frozen, self.mem]
        others = sorted(self._named[:-1], key=lambda rowset: -rowset.live)
        self._placed = [self.mem, *others]
        self._places = np.array([r.place for r in self._placed], np.int64)


def _ends(keys: KeyBytes) -> tuple[bytes, bytes]:
    if keys.width == 8:
        low, high = key_bytes.word_range(keys.data)
        return low.to_bytes(8, "big"), high.to_bytes(8, "big")
    least, greatest = live_versions.extremes(keys.offsets, keys.data)
    return keys.key_at(least), keys.key_at(greatest)


def end_versions(located: Located, ended: Int64s, stamps: Uint64s) -> None:
    """End live versions: of each key at the stamp of the write `ended`, or not at all (-1).

    Args:
        located: live versions of the keys.
        ended: index of the write that ends each version; -1: none.
        stamps: hybrid time of each write.
    """
    if not located.live:
        return
    starts = np.empty(len(located.rowsets) + 1, np.int64)
    rows, at = np.empty(located.live, np.int64), np.empty(located.live, np.uint64)
    spans = np.empty((len(located.rowsets), 2), np.uint64)
    twice = live_versions.end_live(
        located.places, located.which, located.rows, ended, stamps, starts, rows, at, spans
    )
    assert not twice, f"row {twice - 1} ends twice"
    bounds = starts.tolist()
    for number, (begin, end) in enumerate(pairwise(bounds)):
        if begin < end:
            first, last = spans[number].tolist()
            located.rowsets[number].end_stamps.record(rows[begin:end], at[begin:end], first, last)
