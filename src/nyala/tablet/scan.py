"""Scans: which versions are visible at a time and match, in row or key order, and their columns.

Rules: pruning first (statistics, key range), then visibility, then the predicate on its own columns,
then the rest of the columns for what is left. Nothing here looks at a row from Python. Lane COMPUTE.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common import keys as key_bytes
from nyala.common.bounds import KeyBounds, bounds, key_bounds
from nyala.common.ids import ColumnId
from nyala.common.predicate import Const, Predicate, columns_of, evaluate
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.tablet import kernels
from nyala.tablet.gathering import gather_batches, pick
from nyala.tablet.rowset import Int64s, RowSetView, empty_columns

GATHER_ROWS = 131_072
"""Ordered scans gather so many rows at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Rows of one chunk of one rowset that a scan wants.

    Attributes:
        number: position of the rowset in the view.
        chunk: its chunk.
        rows: positions in the chunk, ascending; None: all of it.
        size: how many.
    """

    number: int
    chunk: int
    rows: Int64s | None
    size: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a scan looks for.

    Attributes:
        at: hybrid time.
        where: which rows; None: all.
        after: only keys above this one.
    """

    at: int
    where: Predicate | None = None
    after: bytes | None = None


def select(rowsets: Sequence[RowSetView], schema: Schema, wanted: Wanted) -> Iterator[Selected]:
    """Find the visible rows that match, rowset by rowset, chunk by chunk."""
    for number, rowset in enumerate(rowsets):
        yield from _select_in(number, rowset, schema, wanted)


def _select_in(
    number: int, rowset: RowSetView, schema: Schema, wanted: Wanted
) -> Iterator[Selected]:
    low, high = _row_range(rowset, schema, wanted)
    starts = rowset.chunks.starts
    first = int(np.searchsorted(starts, low, side="right")) - 1
    for chunk in range(first, len(starts) - 1):
        begin, end = max(low, int(starts[chunk])), min(high, int(starts[chunk + 1]))
        if begin >= end:
            break
        seen = np.empty(end - begin, np.uint8)
        count = kernels.visible(
            rowset.ins[begin:end], rowset.ends[begin:end], np.uint64(wanted.at), seen
        )
        if count and wanted.after is not None and not rowset.is_sorted:
            seen &= _above(rowset, begin, end, wanted.after)
        if count and wanted.where is not None:
            offset = begin - int(starts[chunk])
            matches = _matches(rowset, schema, chunk, offset, end - begin, wanted.where)
            seen &= matches
        if wanted.where is not None or wanted.after is not None:
            count = int(np.count_nonzero(seen))
        if not count:
            continue
        whole = count == starts[chunk + 1] - starts[chunk]
        rows = None if whole else np.flatnonzero(seen) + (begin - int(starts[chunk]))
        yield Selected(number, chunk, rows, count)


def _matches(
    rowset: RowSetView, schema: Schema, chunk: int, offset: int, count: int, where: Predicate
) -> np.ndarray:
    def get(column: ColumnId) -> pa.Array:
        return rowset.chunks.column(chunk, schema.by_id[column]).slice(offset, count)

    found = evaluate(where, get, count)
    return np.asarray(found.fill_null(False).to_numpy(zero_copy_only=False)).view(np.uint8)


def _above(rowset: RowSetView, begin: int, end: int, key: bytes) -> np.ndarray:
    part = rowset.keys.take(np.arange(begin, end)).as_arrow()
    found = pc.greater(part, pa.scalar(key, pa.large_binary()))
    return np.asarray(found.to_numpy(zero_copy_only=False)).view(np.uint8)


def _row_range(rowset: RowSetView, schema: Schema, wanted: Wanted) -> tuple[int, int]:
    """Return the rows among which all that is wanted lies."""
    nothing = (0, 0)
    where = wanted.where
    if where is None:
        keys = KeyBounds()
    elif where == Const(False):
        return nothing
    else:
        for column in columns_of(where):
            stats = rowset.stats_of(schema.by_id[column])
            if stats is None:
                continue
            within = bounds(where, column)
            if not within.may_match(stats.minimum, stats.maximum, has_nulls=stats.has_nulls):
                return nothing
        keys = key_bounds(where, schema.key_columns)
    if keys.empty:
        return nothing
    if not rowset.is_sorted:
        return 0, rowset.rows
    lower = keys.lower
    if wanted.after is not None:
        lower = max(lower, wanted.after + b"\0")
    low = _first_at_least(rowset, lower) if lower else 0
    high = rowset.rows if keys.upper is None else _first_at_least(rowset, keys.upper)
    return low, high


def _first_at_least(rowset: RowSetView, key: bytes) -> int:
    low, high = 0, rowset.rows
    while low < high:
        middle = (low + high) // 2
        if rowset.keys.key_at(middle) < key:
            low = middle + 1
        else:
            high = middle
    return low


def read(
    rowsets: Sequence[RowSetView], selected: Selected, columns: Sequence[Column]
) -> pa.RecordBatch:
    """Return the wanted columns of selected rows."""
    if not columns:
        return empty_columns(selected.size)
    chunks, rows = rowsets[selected.number].chunks, selected.rows
    arrays = [chunks.column(selected.chunk, c) for c in columns]
    if rows is not None:
        arrays = [pick(a, rows) for a in arrays]
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))


def scan(
    rowsets: Sequence[RowSetView], schema: Schema, wanted: Wanted, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Visible matching rows, in the order in which they lie."""
    for selected in select(rowsets, schema, wanted):
        yield read(rowsets, selected, columns)


def scan_ordered(
    rowsets: Sequence[RowSetView],
    schema: Schema,
    wanted: Wanted,
    columns: Sequence[Column],
    limit: int | None,
) -> Iterator[pa.RecordBatch]:
    """Visible matching rows in key order; what a limit leaves out is not gathered."""
    which, rows = _in_key_order(rowsets, schema, wanted, limit)
    sources = [r.chunks for r in rowsets]
    names = arrow_schema(columns)
    for begin in range(0, len(rows), GATHER_ROWS):
        part = slice(begin, begin + GATHER_ROWS)
        yield from gather_batches(sources, which[part], rows[part], columns, names)


def _in_key_order(
    rowsets: Sequence[RowSetView], schema: Schema, wanted: Wanted, limit: int | None
) -> tuple[Int64s, Int64s]:
    numbers: list[int] = []
    found: list[Int64s] = []
    for number, rowset in enumerate(rowsets):
        parts, size = [], 0
        for selected in _select_in(number, rowset, schema, wanted):
            starts = rowset.chunks.starts
            base = int(starts[selected.chunk])
            rows = np.arange(selected.size) if selected.rows is None else selected.rows
            parts.append(rows + base)
            size += selected.size
            if rowset.is_sorted and limit is not None and size >= limit:
                break
        if parts:
            numbers.append(number)
            found.append(np.concatenate(parts)[: limit if rowset.is_sorted else None])
    if not found:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    which = np.concatenate(
        [np.full(len(r), n, np.int64) for n, r in zip(numbers, found, strict=True)]
    )
    rows = np.concatenate(found)
    if len(found) > 1 or not rowsets[numbers[0]].is_sorted:
        keys = [rowsets[n].keys.take(r) for n, r in zip(numbers, found, strict=True)]
        order = np.asarray(pc.sort_indices(key_bytes.concat(keys).as_arrow()), np.int64)
        which, rows = which[order], rows[order]
    return which[:limit], rows[:limit]


def count(rowsets: Sequence[RowSetView], schema: Schema, wanted: Wanted) -> int:
    """Number of visible matching rows; without a predicate no column is read."""
    return sum(s.size for s in select(rowsets, schema, wanted))
