"""What every rowset looks like to a reader: versions as rows, columns in chunks; and gathering rows.

A `RowSetView` is immutable but for its `ends`, `slots` and `prev`, which lane APPLY writes in place in ways
that a reader at a safe time cannot tell (marks.py, kernels.py).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys import KeyBytes
from nyala.common.schema import Column
from nyala.tablet.lifetimes import Lifetimes

Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]
NO_PREV: Int64s = np.empty(0, np.int64)
HashKeys = Callable[[Int64s, npt.NDArray[np.uint8], int], Uint64s]
"""As `common/hashing.hash_bytes`; a parameter so that a test can weaken it."""


class Chunked(Protocol):
    """Columns in chunks of rows."""

    @property
    def starts(self) -> Int64s:
        """First row of each chunk, then the number of rows."""
        ...

    def column(self, chunk: int, column: Column) -> pa.Array:
        """Return one column of one chunk; its read default where the rows are older than it."""
        ...

    def lacks(self, column: ColumnId) -> bool:
        """Whether all rows are older than a column."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStats:
    """What is known about one column of one rowset.

    Attributes:
        minimum: least non-null value; None: every value is null.
        maximum: greatest non-null value; None: every value is null.
        has_nulls: some value is null.
    """

    minimum: pa.Scalar | None
    maximum: pa.Scalar | None
    has_nulls: bool


@dataclass(frozen=True, slots=True, eq=False)
class RowSetView:
    """The first `rows` versions of one rowset.

    Attributes:
        rows: how many versions.
        keys: encoded key of each.
        ins: stamp at which each began.
        ends: stamp at which each ended, 0 for live; may be longer than `rows`.
        slots: the key index; may name later rows.
        prev: older row of the same key, or -1; empty in a sorted rowset. May be longer than `rows`.
        chunks: the columns.
        is_sorted: rows are in order of (key, ins).
        stats: of the columns of which they are known.
        lifetimes: of its versions, taken together.
        key_range: least and greatest key, where they are known.
    """

    rows: int
    keys: KeyBytes
    ins: Uint64s
    ends: Uint64s
    slots: Uint64s
    prev: Int64s
    chunks: Chunked
    is_sorted: bool
    stats: Mapping[ColumnId, ColumnStats]
    lifetimes: Lifetimes
    key_range: tuple[bytes, bytes] | None = None

    def stats_of(self, column: Column) -> ColumnStats | None:
        """Return what is known of a column, which the rows may be older than; None: nothing."""
        if not self.chunks.lacks(column.id):
            return self.stats.get(column.id)
        value = column.read_default
        assert value is not None, (
            f"rows are older than column {column.id}, which has no read default"
        )
        if not value.is_valid:
            return ColumnStats(None, None, has_nulls=True)
        if pa.types.is_floating(value.type) and math.isnan(value.as_py()):
            return None  # NaN orders with nothing
        return ColumnStats(value, value, has_nulls=False)


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """Chunks that are record batches with one column per column id."""

    starts: Int64s
    batches: tuple[pa.RecordBatch, ...]
    positions: dict[ColumnId, int]

    @staticmethod
    def of(batches: Sequence[pa.RecordBatch], columns: Sequence[Column]) -> "Batches":
        """Return batches of these columns, in this order, as chunks."""
        starts = np.zeros(len(batches) + 1, np.int64)
        np.cumsum([b.num_rows for b in batches], out=starts[1:])
        return Batches(starts, tuple(batches), {c.id: i for i, c in enumerate(columns)})

    def column(self, chunk: int, column: Column) -> pa.Array:
        """Return one column of one chunk; its read default where the rows are older than it."""
        position = self.positions.get(column.id)
        if position is None:
            return older_than(column, self.batches[chunk].num_rows)
        return self.batches[chunk].column(position)

    def lacks(self, column: ColumnId) -> bool:
        """Whether all rows are older than a column."""
        return column not in self.positions


def older_than(column: Column, rows: int) -> pa.Array:
    """Return a column of rows that are older than it."""
    value = column.read_default
    assert value is not None, f"rows are older than column {column.id}, which has no read default"
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, column.type)


def gather(
    sources: Sequence[Chunked],
    which: npt.NDArray[np.int64],
    rows: Int64s,
    columns: Sequence[Column],
) -> list[pa.Array]:
    """Return columns of rows from several sources.

    Args:
        sources: where rows come from.
        which: number of the source of each row.
        rows: position of each row in its source.
        columns: what to return, one array each, in the order of `rows`.

    Raises:
        pa.ArrowInvalid: more than 2 GiB in one string column; `gather_batches` copes.
    """
    if not len(rows):
        return [pa.array([], c.type) for c in columns]
    if len(rows) == 1:
        return _one(sources[int(which[0])], int(rows[0]), columns)
    bases = np.zeros(len(sources) + 1, np.int64)
    np.cumsum([len(s.starts) - 1 for s in sources], out=bases[1:])
    chunk, local = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    for number in np.unique(which).tolist():
        mine = which == number
        starts = sources[number].starts
        inside = np.searchsorted(starts, rows[mine], side="right") - 1
        chunk[mine] = bases[number] + inside
        local[mine] = rows[mine] - starts[inside]
    order = np.argsort(chunk, kind="stable")
    cuts = np.flatnonzero(np.diff(chunk[order])) + 1
    groups = np.split(order, cuts)
    found = []
    for members in groups:
        number = int(chunk[members[0]])
        source = int(np.searchsorted(bases, number, side="right")) - 1
        inside = number - int(bases[source])
        arrays = [sources[source].column(inside, column) for column in columns]
        found.append(pick_all(arrays, local[members]))
    if len(groups) == 1:
        return found[0]
    whole = [pa.concat_arrays(parts) for parts in zip(*found, strict=True)]
    if bool(np.all(np.diff(chunk) >= 0)):
        return whole
    back = np.empty(len(rows), np.int64)
    back[order] = np.arange(len(rows))
    return pick_all(whole, back)


def _one(source: Chunked, row: int, columns: Sequence[Column]) -> list[pa.Array]:
    chunk = int(source.starts.searchsorted(row, side="right")) - 1
    local = row - int(source.starts[chunk])
    return [source.column(chunk, column).slice(local, 1) for column in columns]


def pick_all(arrays: Sequence[pa.Array], rows: Int64s) -> list[pa.Array]:
    """Return some rows of arrays of one length; without copying where they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first == len(rows) - 1 and (len(rows) < 3 or bool(np.all(np.diff(rows) == 1))):
        return [array.slice(first, len(rows)) for array in arrays]
    if not arrays:
        return []
    names = [str(number) for number in range(len(arrays))]
    taken: list[pa.Array] = pa.RecordBatch.from_arrays(arrays, names).take(pa.array(rows)).columns
    return taken


def pick(array: pa.Array, rows: Int64s) -> pa.Array:
    """Return some rows of an array; without copying where they are neighbours."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first == len(rows) - 1 and (len(rows) < 3 or bool(np.all(np.diff(rows) == 1))):
        return array.slice(first, len(rows))
    return array.take(pa.array(rows))


def gather_batches(
    sources: Sequence[Chunked],
    which: npt.NDArray[np.int64],
    rows: Int64s,
    columns: Sequence[Column],
    schema: pa.Schema,
) -> list[pa.RecordBatch]:
    """As `gather`, in as few batches as hold it (a string column of one holds at most 2 GiB)."""
    try:
        arrays = gather(sources, which, rows, columns)
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if len(rows) < 2:
            raise
        half = len(rows) // 2
        return [
            *gather_batches(sources, which[:half], rows[:half], columns, schema),
            *gather_batches(sources, which[half:], rows[half:], columns, schema),
        ]
    if not columns:
        return [empty_columns(len(rows))]
    return [pa.RecordBatch.from_arrays(arrays, schema=schema)]


def empty_columns(rows: int) -> pa.RecordBatch:
    """Return a batch of so many rows without any column."""
    carrier = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["rows"])
    return carrier.select([])
