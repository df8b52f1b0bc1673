"""Recent versions in memory: batches as applied, with the arrays and the index that find them.

Written in lane APPLY only; readers hold the views it hands out. Arrays grow together, into new ones, so
that an older view keeps a consistent generation of them.
"""

from collections.abc import Sequence
from typing import TypeVar, cast

import numpy as np
import pyarrow as pa

from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column
from nyala.tablet.files.end_stamps import EndStamps
from nyala.tablet.kernels import key_index, live_versions, row_decisions
from nyala.tablet.rows.lifetimes import Ended, Lifetimes
from nyala.tablet.rows.rowset import Batches, Int64s, RowSetView, Uint64s

CHUNK_ROWS = 65_536
CHUNK_BYTES = 64 << 20
_FAN_IN = 32
_FIRST_CAPACITY = 1024
_Array = TypeVar("_Array", bound=np.ndarray)


class MemRowSet:
    """The newest versions of a tablet, until a flush writes them.

    Args:
        columns: all of the table's columns, in schema order.

    Attributes:
        rows: number of versions.
        data_bytes: approximate memory of their data.
        end_stamps: their end timestamps.
        key_range: bounds of its keys, as passed to `widen`; None: no keys.
        place: current row for `live_versions`.
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self._positions = {c.id: n for n, c in enumerate(columns)}
        self.rows = 0
        self.data_bytes = 0
        self.key_range: tuple[bytes, bytes] | None = None
        self.end_stamps = EndStamps(np.zeros(_FIRST_CAPACITY, np.uint64), recording=False)
        self._hashes = np.zeros(_FIRST_CAPACITY, np.uint64)
        self._ins = np.zeros(_FIRST_CAPACITY, np.uint64)
        self._prev = np.zeros(_FIRST_CAPACITY, np.int64)
        self._slots = np.zeros(2 * _FIRST_CAPACITY, np.uint64)
        self._layout: Int64s | None = None  # of keys that all have one width
        self._offsets = np.zeros(_FIRST_CAPACITY + 1, np.int64)
        self._key_bytes = 0
        self._key_data = np.zeros(16 * _FIRST_CAPACITY, np.uint8)
        self._chunks = _Chunks()
        self._view: RowSetView | None = None
        self.place = self._place()

    def append(
        self,
        batches: Sequence[pa.RecordBatch],
        keys: KeyBytes,
        hashes: Uint64s,
        made: Int64s,
        stamps: Uint64s,
        newest: Int64s,
    ) -> None:
        """Add versions.

        Args:
            batches: all columns, in schema order, of the versions.
            keys: their encoded keys.
            hashes: hashes of the rows that `made` names as sources.
            made: the versions, as `row_decisions.decide` returns them.
            stamps: timestamps of the writes that `made` names, above every stamp so far.
            newest: for each key that `made` names, its newest version in this rowset so far, or -1.
        """
        count, first = len(keys), self.rows
        last = first + count
        assert last <= key_index.MAX_ROWS, f"{last} rows in memory"
        assert sum(b.num_rows for b in batches) == count, f"{count} keys for other rows"
        begin = self._key_bytes
        self._key_bytes += len(keys.data)
        self._reserve(last, self._key_bytes)
        self._key_data[begin : self._key_bytes] = keys.data
        if keys.width:
            self._layout = keys.layout
        else:
            self._offsets[first + 1 : last + 1] = keys.layout[1:] + begin
        ended = key_index.enter(
            self._slots, self._hashes, self._ins, self._prev, self.end_stamps.ends,
            first, hashes, made, stamps, newest,
        )  # fmt: skip
        if ended:
            self.end_stamps.count_ended(
                stamps[made[row_decisions.ENDED][made[row_decisions.ENDED] >= 0]]
            )
        for batch in batches:
            self._chunks.append(batch)
            self.data_bytes += _bytes_of(batch)
        self.data_bytes += len(keys.data) + 48 * count
        self.rows = self.place[live_versions.ROWS] = last
        self._view = None

    def widen(self, low: bytes, high: bytes) -> None:
        """Record that versions of keys from `low` to `high` may be added."""
        was = self.key_range
        self.key_range = (low, high) if was is None else (min(was[0], low), max(was[1], high))

    def date(self, at: int) -> None:
        """Set the time at which all versions begin, and at which those that have ended end.

        Args:
            at: hybrid time; no view was taken before.
        """
        ends = self.end_stamps.ends[: self.rows]
        self._ins[: self.rows] = at
        ends[ends != 0] = at
        self.end_stamps.ended = Ended.of(ends)
        self._view = None

    @property
    def hashes(self) -> Uint64s:
        """Index hash of each version's key."""
        return self._hashes[: self.rows]

    @property
    def live(self) -> int:
        """Number of versions that have not ended."""
        return self.rows - self.end_stamps.ended.rows

    def view(self) -> RowSetView:
        """Return a view of the rowset's present contents. Lane APPLY; the view may be read in any lane."""
        if self._view is None or self._view.lifetimes.ended is not self.end_stamps.ended:
            layout = self._offsets[: self.rows + 1] if self._layout is None else self._layout
            born = (int(self._ins[0]), int(self._ins[max(0, self.rows - 1)]))
            self._view = RowSetView(
                rows=self.rows,
                keys=KeyBytes(layout, self._key_data[: self._key_bytes]),
                ins=self._ins[: self.rows],
                ends=self.end_stamps.ends[: self.rows],
                slots=self._slots,
                prev=self._prev,
                chunks=Batches(self._chunks.all(), self._positions),
                is_sorted=False,
                stats={},
                lifetimes=Lifetimes(self.rows, *born, self.end_stamps.ended),
            )
        return self._view

    def _reserve(self, rows: int, key_bytes: int) -> None:
        if key_bytes > len(self._key_data):
            size = _at_least(key_bytes, len(self._key_data))
            self._key_data = _grown(self._key_data, len(self._key_data), size)
            self.place = self._place()
        if rows <= len(self._ins):
            return
        capacity, used = _at_least(rows, len(self._ins)), self.rows
        ends = np.zeros(capacity, np.uint64)  # the rest is not read before it is used
        ends[:used] = self.end_stamps.ends[:used]
        self.end_stamps.ends = ends
        self._ins = _grown(self._ins, used, capacity)
        self._prev = _grown(self._prev, used, capacity)
        self._hashes = _grown(self._hashes, used, capacity)
        if self._layout is None:
            self._offsets = _grown(self._offsets, used + 1, capacity + 1)
        slots = np.zeros(2 * capacity, np.uint64)
        key_index.relink(self._slots, self._hashes, slots)
        self._slots = slots
        self.place = self._place()

    def _place(self) -> list[int]:
        arrays = self._slots, self._offsets, self._key_data, self._prev, self.end_stamps.ends
        slots, offsets, keys, prev, ends = (a.ctypes.data for a in arrays)
        return [slots, len(self._slots), offsets, keys, self.rows, prev, ends]


class _Chunks:
    """Batches in order of arrival, concatenated like digits of a binary counter into larger chunks."""

    def __init__(self) -> None:
        self._done: list[pa.RecordBatch] = []
        self._levels: list[list[pa.RecordBatch]] = [[]]  # the first one holds the newest

    def append(self, batch: pa.RecordBatch) -> None:
        if _is_chunk(batch):
            self._done += [b for level in reversed(self._levels) for b in level]
            self._done.append(batch)
            self._levels = [[]]
            return
        level = 0
        self._levels[0].append(batch)
        while len(self._levels[level]) >= _FAN_IN:
            merged = pa.concat_batches(self._levels[level])
            self._levels[level] = []
            level += 1
            if _is_chunk(merged):  # higher levels are older
                self._done += [b for up in reversed(self._levels[level:]) for b in up]
                self._done.append(merged)
                self._levels = [[]]
                return
            if level == len(self._levels):
                self._levels.append([])
            self._levels[level].append(merged)

    def all(self) -> list[pa.RecordBatch]:
        return self._done + [b for level in reversed(self._levels) for b in level]


def _bytes_of(batch: pa.RecordBatch) -> int:
    """Return the approximate memory of a batch; Arrow's exact count takes longer than a small write."""
    return int(batch.get_total_buffer_size())


def _is_chunk(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows >= CHUNK_ROWS or _bytes_of(batch) >= CHUNK_BYTES // _FAN_IN)


def _at_least(wanted: int, current: int) -> int:
    size = max(current, 1)
    while size < wanted:
        size *= 2
    return size


def _grown(array: _Array, used: int, size: int) -> _Array:
    grown = np.empty(size, array.dtype)
    grown[:used] = array[:used]
    return cast("_Array", grown)
