"""Selection of the rows of a scan in a rowset: pruning, then visibility, then the predicate.

Pruning is by the lifetimes of all versions, by key range, and by column statistics of the rowset and of each
chunk. A predicate reads only its own columns. Nothing here looks at a row from Python. Lane COMPUTE, or APPLY
for the conditions of a transaction.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.bounds import Bounds, KeyBounds, bounds, key_bounds
from nyala.common.expressions.predicate import Const, Predicate, columns_of, evaluate
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Schema
from nyala.tablet.kernels import key_index
from nyala.tablet.rows.rowset import Int64s, RowSetView

Flags = npt.NDArray[np.uint8]
_NOTHING = (0, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Selected:
    """Rows of one chunk of one rowset that a scan wants.

    Attributes:
        number: position of the rowset in the view.
        chunk: its chunk.
        begin: position in the chunk of the first row looked at.
        end: and after the last one.
        flags: 1 for each of them that is wanted; None: all of them.
        size: how many are wanted.
    """

    number: int
    chunk: int
    begin: int
    end: int
    flags: Flags | None
    size: int

    def rows(self) -> Int64s:
        """Return the positions in the chunk of the wanted rows, ascending."""
        if self.flags is None:
            return np.arange(self.begin, self.end)
        return np.flatnonzero(self.flags.view(np.bool_)) + self.begin


EVERY_KEY = KeyBounds()


@dataclass(frozen=True, slots=True)
class ScanFilter:
    """Time, predicate and key bounds of a scan.

    Attributes:
        at: hybrid time.
        where: which rows; None: all.
        within: only these keys.
        lenient: a row for which the predicate cannot be evaluated does not match, instead of an error.
    """

    at: int
    where: Predicate | None = None
    within: KeyBounds = EVERY_KEY
    lenient: bool = False


def select(
    number: int,
    rowset: RowSetView,
    schema: Schema,
    wanted: ScanFilter,
    within: tuple[int, int] | None = None,
) -> Iterator[Selected]:
    """Find the visible rows that match, chunk by chunk.

    Args:
        number: number of the rowset in its view.
        rowset: where to look.
        schema: schema of the table.
        wanted: what to look for.
        within: rows outside of which none is wanted, as `row_range` gave them or less; None: not known.
    """
    low, high = row_range(rowset, schema, wanted) if within is None else within
    if low >= high:
        return
    every = rowset.lifetimes.all_at(wanted.at)
    starts = rowset.chunks.starts
    first = int(starts.searchsorted(low, side="right")) - 1
    limits = _limits(rowset, wanted.where)
    for chunk in range(first, len(starts) - 1):
        base = int(starts[chunk])
        begin, end = max(low, base), min(high, int(starts[chunk + 1]))
        if begin >= end:
            return
        if not all(_may_match(rowset, chunk, *limit) for limit in limits):
            continue
        flags = None if every else np.empty(end - begin, np.uint8)
        size = end - begin
        if flags is not None:
            size = key_index.visible(
                rowset.ins[begin:end], rowset.ends[begin:end], np.uint64(wanted.at), flags
            )
        if size and wanted.within != EVERY_KEY and not rowset.is_sorted:
            flags, size = _intersection(flags, _within(rowset, begin, end, wanted.within))
        if size and wanted.where is not None:
            place = chunk, begin - base, end - begin
            matches = _matches(rowset, schema, place, wanted.where, lenient=wanted.lenient)
            flags, size = _intersection(flags, matches)
        if size:
            chosen = None if size == end - begin else flags
            yield Selected(number, chunk, begin - base, end - base, chosen, size)


def _limits(rowset: RowSetView, where: Predicate | None) -> list[tuple[ColumnId, Bounds]]:
    """Return the conditions of a predicate on columns that have statistics for each of several chunks."""
    if where is None or not rowset.stats or len(rowset.chunks.starts) <= 2:
        return []
    return [(c, bounds(where, c)) for c in columns_of(where) if c in rowset.stats]


def _may_match(rowset: RowSetView, chunk: int, column: ColumnId, within: Bounds) -> bool:
    stats = rowset.chunks.stats_of(chunk, column)
    if stats is None:
        return True
    return within.may_match(stats.minimum, stats.maximum, has_nulls=stats.has_nulls)


def _intersection(flags: Flags | None, others: Flags) -> tuple[Flags, int]:
    both = others if flags is None else flags & others
    return both, int(np.count_nonzero(both.view(np.bool_)))


def _matches(
    rowset: RowSetView,
    schema: Schema,
    place: tuple[int, int, int],
    where: Predicate,
    *,
    lenient: bool,
) -> Flags:
    """Return which rows match a predicate.

    Args:
        rowset: has them.
        schema: schema of the table.
        place: a chunk, the first row in it, and the number of rows.
        where: the predicate.
        lenient: as of `ScanFilter`; the result does not depend on how rows are divided into chunks.
    """
    chunk, offset, count = place

    def get(column: ColumnId) -> pa.Array:
        return rowset.chunks.column(chunk, schema.by_id[column]).slice(offset, count)

    try:
        return _flags(evaluate(where, get, count))
    except (pa.ArrowException, InvalidArgument):
        if not lenient:
            raise
        if count == 1:
            return np.zeros(1, np.uint8)
    half = count // 2
    parts = (chunk, offset, half), (chunk, offset + half, count - half)
    return np.concatenate([_matches(rowset, schema, p, where, lenient=True) for p in parts])


def _flags(found: pa.BooleanArray) -> Flags:
    """Return 1 for true, 0 for false and unknown."""
    if found.null_count:
        found = found.fill_null(False)
    bits = np.frombuffer(found.buffers()[1], np.uint8)[found.offset // 8 :]
    skipped = found.offset % 8
    return np.unpackbits(bits, count=skipped + len(found), bitorder="little")[skipped:]


def _within(rowset: RowSetView, begin: int, end: int, wanted: KeyBounds) -> Flags:
    part = rowset.keys.as_arrow().slice(begin, end - begin)
    found = pc.greater_equal(part, pa.scalar(wanted.lower, pa.large_binary()))
    if wanted.upper is not None:
        found = pc.and_(found, pc.less(part, pa.scalar(wanted.upper, pa.large_binary())))
    return _flags(found)


def row_range(rowset: RowSetView, schema: Schema, wanted: ScanFilter) -> tuple[int, int]:
    """Return a range of rows that contains all selected ones; none: (0, 0).

    Args:
        rowset: read from.
        schema: schema of the tablet.
        wanted: time, predicate and keys.
    """
    where = wanted.where
    if rowset.lifetimes.none_at(wanted.at) or where == Const(False):
        return _NOTHING
    keys = KeyBounds()
    if where is not None:
        for column in columns_of(where):
            stats = rowset.stats_of(schema.by_id[column])
            if stats is None:
                continue
            within = bounds(where, column)
            if not within.may_match(stats.minimum, stats.maximum, has_nulls=stats.has_nulls):
                return _NOTHING
        keys = key_bounds(where, schema.key_columns)
    if keys.empty:
        return _NOTHING
    if not rowset.is_sorted:
        return 0, rowset.rows
    lower = max(keys.lower, wanted.within.lower)
    uppers = [u for u in (keys.upper, wanted.within.upper) if u is not None]
    low = first_at_least(rowset.keys, lower, 0, rowset.rows) if lower else 0
    if not uppers:
        return low, rowset.rows
    return low, first_at_least(rowset.keys, min(uppers), low, rowset.rows)


def first_at_least(keys: KeyBytes, key: bytes, low: int, high: int) -> int:
    """Return the first of some sorted keys in [low, high) that is not below `key`; none: `high`.

    Args:
        keys: sorted keys.
        key: encoded key.
        low: first index searched.
        high: end of the indexes searched.
    """
    while low < high:
        middle = (low + high) // 2
        if keys.key_at(middle) < key:
            low = middle + 1
        else:
            high = middle
    return low
