"""Scans in key order: windows of keys, each merged from the rowsets that have rows in it.

Memory is bounded by one window's keys and rows, and the keys of selected rows of memory rowsets,
which are in memory anyway. A window is bounded so that no rowset has more than its share of rows in it.
Lane COMPUTE.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.ids import ColumnId
from nyala.common.keys import encoding as key_bytes
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.tablet.rows.gathering import gather_batches
from nyala.tablet.rows.rowset import Chunked, ColumnStats, Int64s, RowSetView
from nyala.tablet.rows.selection import ScanFilter, first_at_least, row_range, select

WINDOW_ROWS = 131_072
_FIRST_ROWS = 1024
"""The first window of a scan with a limit; each next one has twice the rows."""


class _Source:
    """One rowset, read from its least key to its greatest.

    Attributes:
        keys: sorted, with those of older versions.
        at: position of the next key.
        end: position after the last key.
        chunks: the columns.
    """

    def __init__(self, number: int, rowset: RowSetView, schema: Schema, wanted: ScanFilter) -> None:
        self.chunks = _CachedChunks(rowset.chunks)
        self._rowset = replace(rowset, chunks=self.chunks)
        self._number, self._schema, self._wanted = number, schema, wanted
        self._order: Int64s | None = None
        if rowset.is_sorted:
            self.keys = rowset.keys
            self.at, self.end = row_range(rowset, schema, wanted)
        else:
            rows = self._select(None)
            keys = rowset.keys.take(rows)
            order = np.asarray(pc.sort_indices(keys.as_arrow()), np.int64)
            self._order, self.keys = rows[order], keys.take(order)
            self.at, self.end = 0, len(order)

    def take(self, end: int) -> tuple[Int64s, KeyBytes]:
        """Return the rows wanted up to a position, in key order, and their keys; go on from there."""
        begin, self.at = self.at, end
        if self._order is not None:
            return self._order[begin:end], self.keys.take(np.arange(begin, end))
        rows = self._select((begin, end))
        return rows, self.keys.take(rows)

    def _select(self, within: tuple[int, int] | None) -> Int64s:
        starts = self._rowset.chunks.starts
        found = [
            s.rows() + starts[s.chunk]
            for s in select(self._number, self._rowset, self._schema, self._wanted, within)
        ]
        return np.concatenate(found) if found else np.empty(0, np.int64)


class _CachedChunks:
    """Columns of a rowset; the last decoded chunk of each is cached."""

    def __init__(self, chunks: Chunked) -> None:
        self._chunks = chunks
        self._last: dict[ColumnId, tuple[int, pa.Array]] = {}

    @property
    def starts(self) -> Int64s:
        return self._chunks.starts

    def column(self, chunk: int, column: Column) -> pa.Array:
        number, array = self._last.get(column.id, (-1, None))
        if number != chunk:
            array = self._chunks.column(chunk, column)
            self._last[column.id] = (chunk, array)
        return array

    def lacks(self, column: ColumnId) -> bool:
        return self._chunks.lacks(column)

    def stats_of(self, chunk: int, column: ColumnId) -> ColumnStats | None:
        return self._chunks.stats_of(chunk, column)

    def bytes_of(self, chunk: int, column: ColumnId) -> int:
        return self._chunks.bytes_of(chunk, column)


def scan_ordered(
    rowsets: Sequence[RowSetView],
    schema: Schema,
    wanted: ScanFilter,
    columns: Sequence[Column],
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    """Return visible matching rows in key order; rows beyond the limit are mostly not read.

    Args:
        rowsets: rowsets of the tablet.
        schema: schema of the tablet.
        wanted: time, predicate and keys.
        columns: wanted, in this order.
        limit: most rows; None: all.
    """
    sources = [_Source(n, r, schema, wanted) for n, r in enumerate(rowsets)]
    chunks = [s.chunks for s in sources]
    names = arrow_schema(columns)
    window = WINDOW_ROWS if limit is None else min(_FIRST_ROWS, WINDOW_ROWS)
    left = limit
    while live := [n for n, s in enumerate(sources) if s.at < s.end]:
        which, rows = _window(sources, live, max(1, window // len(live)))
        window = min(2 * window, WINDOW_ROWS)
        if left is not None:
            which, rows = which[:left], rows[:left]
            left -= len(rows)
        if len(rows):
            yield from gather_batches(chunks, which, rows, columns, names)
        if left == 0:
            return


def _window(sources: Sequence[_Source], live: Sequence[int], share: int) -> tuple[Int64s, Int64s]:
    """Return the next rows in key order, as (source, row); at most `share` versions of each source.

    All versions of a key are returned together, even if there are more.
    """
    ends = _ends([sources[n] for n in live], share)
    parts = []
    for number, end in zip(live, ends, strict=True):
        if end > sources[number].at:
            rows, keys = sources[number].take(end)
            if len(rows):
                parts.append((number, rows, keys))
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    which = np.concatenate([np.full(len(rows), n, np.int64) for n, rows, _ in parts])
    rows = np.concatenate([rows for _, rows, _ in parts])
    if len(parts) > 1:
        keys = key_bytes.concat([keys for _, _, keys in parts])
        order = np.asarray(pc.sort_indices(keys.as_arrow()), np.int64)
        which, rows = which[order], rows[order]
    return which, rows


def _ends(sources: Sequence[_Source], share: int) -> list[int]:
    """Return the end of the window in each source: the least of the keys that are `share` rows ahead."""
    ahead = [s.keys.key_at(s.at + share) for s in sources if s.at + share < s.end]
    if not ahead:
        return [s.end for s in sources]
    bound = min(ahead)
    ends = [first_at_least(s.keys, bound, s.at, s.end) for s in sources]
    if any(end > s.at for s, end in zip(sources, ends, strict=True)):
        return ends
    bound += b"\0"
    return [first_at_least(s.keys, bound, s.at, s.end) for s in sources]
