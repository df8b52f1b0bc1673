"""Interface of rowsets to readers: versions as rows, columns in chunks; and gathering of rows.

A `RowSetView` is immutable except for its `ends`, `slots` and `prev`, which lane APPLY writes in place in
ways that do not affect a reader at a safe time (end_stamps.py, kernels).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column
from nyala.tablet.rows.lifetimes import Lifetimes

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
        """Return whether all rows are older than a column."""
        ...

    def stats_of(self, chunk: int, column: ColumnId) -> "ColumnStats | None":
        """Return the statistics of a column in one chunk; None: unknown."""
        ...

    def bytes_of(self, chunk: int, column: ColumnId) -> int:
        """Return the stored bytes of one column of one chunk, without reading it."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStats:
    """Statistics of one column of one rowset.

    Attributes:
        minimum: least non-null value; None: every value is null.
        maximum: greatest non-null value; None: every value is null.
        has_nulls: some value is null.
    """

    minimum: pa.Scalar | None
    maximum: pa.Scalar | None
    has_nulls: bool


@dataclass(slots=True, eq=False)  # not frozen: a small write makes one of each rowset
class RowSetView:
    """The first `rows` versions of one rowset. No attribute is ever set again once it is made.

    Attributes:
        rows: how many versions.
        keys: encoded key of each.
        ins: stamp at which each began.
        ends: stamp at which each ended, 0 for live; may be longer than `rows`.
        slots: the key index; may name later rows.
        prev: older row of the same key, or -1; empty in a sorted rowset. May be longer than `rows`.
        chunks: the columns.
        is_sorted: rows are in order of (key, ins).
        stats: statistics of the columns of which they are known.
        lifetimes: aggregated lifetimes of its versions, taken together.
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
        """Return the statistics of a column, also if the rows are older than it; None: unknown."""
        if not self.chunks.lacks(column.id):
            return self.stats.get(column.id)
        value = column.read_default
        assert value is not None, (
            f"rows are older than column {column.id}, which has no read default"
        )
        if not value.is_valid:
            return ColumnStats(None, None, has_nulls=True)
        if pa.types.is_floating(value.type) and math.isnan(value.as_py()):
            return None  # NaN has no order
        return ColumnStats(value, value, has_nulls=False)


class Batches:
    """Chunks that are record batches with one column per column id.

    Args:
        batches: in row order.
        positions: positions of each column in them.
    """

    __slots__ = ("_starts", "batches", "positions")

    def __init__(
        self, batches: Sequence[pa.RecordBatch], positions: Mapping[ColumnId, int]
    ) -> None:
        self.batches = tuple(batches)
        self.positions = positions
        self._starts: Int64s | None = None

    @staticmethod
    def of(batches: Sequence[pa.RecordBatch], columns: Sequence[Column]) -> "Batches":
        """Return batches of these columns, in this order, as chunks."""
        return Batches(batches, {c.id: i for i, c in enumerate(columns)})

    @property
    def starts(self) -> Int64s:
        """First row of each chunk, then the number of rows; made on first use."""
        if self._starts is None:
            starts = np.zeros(len(self.batches) + 1, np.int64)
            np.cumsum([b.num_rows for b in self.batches], out=starts[1:])
            self._starts = starts
        return self._starts

    def column(self, chunk: int, column: Column) -> pa.Array:
        """Return one column of one chunk; its read default where the rows are older than it."""
        position = self.positions.get(column.id)
        if position is None:
            return older_than(column, self.batches[chunk].num_rows)
        return self.batches[chunk].column(position)

    def lacks(self, column: ColumnId) -> bool:
        """Return whether all rows are older than a column."""
        return column not in self.positions

    def stats_of(self, chunk: int, column: ColumnId) -> ColumnStats | None:
        """Return None: batches in memory have no statistics."""
        return None

    def bytes_of(self, chunk: int, column: ColumnId) -> int:
        """Return the memory of one column of one chunk."""
        position = self.positions.get(column)
        return 0 if position is None else int(self.batches[chunk].column(position).nbytes)


def older_than(column: Column, rows: int) -> pa.Array:
    """Return a column of rows that are older than it."""
    value = column.read_default
    assert value is not None, f"rows are older than column {column.id}, which has no read default"
    return pa.repeat(value, rows) if value.is_valid else pa.nulls(rows, column.type)


def empty_columns(rows: int) -> pa.RecordBatch:
    """Return a batch with the given number of rows and no columns."""
    carrier = pa.RecordBatch.from_arrays([pa.nulls(rows)], names=["rows"])
    return carrier.select([])
