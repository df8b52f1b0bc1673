"""The rowsets of a tablet as lane APPLY sees them, and where a key's live version is.

Rules: everything here runs in lane APPLY. Readers get tuples of `RowSetView`s, published whole.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.ids import ColumnId
from nyala.common.keys import KeyBytes
from nyala.common.schema import Schema
from nyala.tablet import kernels
from nyala.tablet.diskrowset import DiskRowSet
from nyala.tablet.manifest import TabletInfo
from nyala.tablet.memrowset import MemRowSet
from nyala.tablet.rowset import HashKeys, Int64s, RowSetView, Uint64s

RowSet = MemRowSet | DiskRowSet


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where the live versions of some keys are.

    Attributes:
        rowsets: newest first; [0] is the memory rowset that takes new versions.
        views: of them.
        which: position in `rowsets` of each key's live version, or -1.
        rows: its row there.
        newest_in_memory: row of each key's newest version in `rowsets[0]`, live or not, or -1.
    """

    rowsets: tuple[RowSet, ...]
    views: tuple[RowSetView, ...]
    which: Int64s
    rows: Int64s
    newest_in_memory: Int64s


class Store:
    """What the tablet is, and its rowsets: newest state.

    Args:
        info: what the tablet is.
        seed: of the index hash.
        hash_keys: the index hash.
        disks: in the manifest's order.
        retired: types of the columns that were dropped.

    Attributes:
        info: what the tablet is now.
        retired: types of the columns that were dropped; replaced, never changed.
        seed: of the index hash.
        hash_keys: the index hash.
        mem: takes new versions.
        frozen: memory rowsets that wait for a flush, oldest first.
        disks: in the manifest's order.
        live: how many rows are live now.
    """

    def __init__(
        self,
        info: TabletInfo,
        seed: int,
        hash_keys: HashKeys,
        disks: Sequence[DiskRowSet],
        retired: Mapping[ColumnId, pa.DataType],
    ) -> None:
        self.retired = retired
        self.seed = seed
        self.hash_keys = hash_keys
        self.mem = MemRowSet(info.schema.columns)
        self.frozen: list[MemRowSet] = []
        self.disks = list(disks)
        self.live = sum(d.rows - d.marks.ended.rows for d in disks)
        self._take(info)

    def _take(self, info: TabletInfo) -> None:
        columns = info.schema.columns
        self.info = info
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
        """Become what `info` says: new versions have its columns, those that are there stay as they are."""
        old, new = self.schema, info.schema
        dropped = {c.id: c.type for c in old.columns if c.id not in new.by_id}
        self.retired = {**self.retired, **dropped}
        self._take(info)
        if [c.id for c in old.columns] != [c.id for c in new.columns]:
            self.freeze()
            self.mem = MemRowSet(new.columns)  # also where there was nothing to freeze

    def hashes(self, keys: KeyBytes) -> Uint64s:
        """Return the index hash of each key."""
        return self.hash_keys(keys.offsets, keys.data, self.seed)

    def freeze(self) -> None:
        """Let new versions go to a new memory rowset, and keep what ends in the old one meanwhile."""
        if self.mem.rows:
            self.mem.marks.recording = True
            self.frozen.append(self.mem)
            self.mem = MemRowSet(self.schema.columns)

    def views(self) -> tuple[RowSetView, ...]:
        """Return all rowsets for readers, oldest first."""
        rowsets: list[RowSet] = [*self.disks, *self.frozen, self.mem]
        return tuple(r.view() for r in rowsets if r.rows)

    def memory_bytes(self) -> int:
        """Memory that a flush would free."""
        held = sum(m.data_bytes for m in (*self.frozen, self.mem))
        return held + sum(d.marks.pending_bytes() for d in self.disks)

    def locate(self, keys: KeyBytes, hashes: Uint64s, wanted: Int64s) -> Located:
        """Find the live version of some distinct keys.

        Args:
            keys: of a batch.
            hashes: of `keys`.
            wanted: the rows of `keys` to find.
        """
        rowsets: list[RowSet] = [self.mem, *reversed(self.frozen), *reversed(self.disks)]
        views = tuple(r.view() for r in rowsets)
        which, rows = np.full(len(wanted), -1, np.int64), np.full(len(wanted), -1, np.int64)
        newest = np.full(len(wanted), -1, np.int64)
        low, high = _ends(keys) if self.disks and len(wanted) else (b"", b"")
        for number, (rowset, view) in enumerate(zip(rowsets, views, strict=True)):
            if isinstance(rowset, DiskRowSet) and (high < rowset.min_key or low > rowset.max_key):
                continue
            todo = np.flatnonzero(which < 0)
            found = np.empty(len(todo), np.int64)
            kernels.find(
                view.slots, view.keys.offsets, view.keys.data, view.rows, view.prev,
                keys.offsets, keys.data, hashes, wanted[todo], found,
            )  # fmt: skip
            if number == 0:
                newest[todo] = found
            hits = np.flatnonzero(found >= 0)
            hits = hits[view.ends[found[hits]] == 0]
            which[todo[hits]] = number
            rows[todo[hits]] = found[hits]
        return Located(tuple(rowsets), views, which, rows, newest)


def _ends(keys: KeyBytes) -> tuple[bytes, bytes]:
    found = pc.min_max(keys.as_arrow())
    return found["min"].as_py(), found["max"].as_py()


def end_versions(located: Located, keys: npt.NDArray[np.bool_], stamp: int) -> None:
    """End the live versions of the flagged keys at a stamp."""
    for number, rowset in enumerate(located.rowsets):
        rows = located.rows[keys & (located.which == number)]
        if len(rows):
            rowset.marks.end(rows, np.full(len(rows), stamp, np.uint64))
