"""Split points of a scan: keys with about the same number of bytes between them.

Computed from the sizes of blocks and the key indexes; no column is read. The bytes are those of the columns
that the scan reads: stored bytes in files, including history, and bytes in memory. Lane COMPUTE.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import columns_of
from nyala.common.ids import ColumnId
from nyala.common.schema import Column, Schema
from nyala.tablet.rows.rowset import Int64s, RowSetView
from nyala.tablet.rows.selection import ScanFilter, first_at_least, row_range

MAX_PIECES = 4096
"""Maximum number of pieces of one tablet."""
GRAINS = 16
"""Positions of a rowset that are examined per piece; a piece may be too large by one step of each rowset."""


def split_keys(
    rowsets: Sequence[RowSetView],
    schema: Schema,
    wanted: ScanFilter,
    columns: Sequence[Column],
    split_bytes: int,
) -> list[bytes]:
    """Return the keys at which pieces begin, except the first one, ascending, within the bounds.

    Args:
        rowsets: what is scanned.
        schema: schema of the table.
        wanted: by which scan.
        columns: that it returns; those of its predicate count too.
        split_bytes: what a piece should have; none is much smaller.

    Raises:
        InvalidArgument: it makes no sense, or makes more than `MAX_PIECES`.
    """
    if split_bytes < 1:
        raise InvalidArgument(f"split_bytes={split_bytes}: a piece has one byte at least")
    ids = {c.id: None for c in columns}
    if wanted.where is not None:
        ids |= dict.fromkeys(sorted(columns_of(wanted.where)))
    parts = [_Part(r, schema, wanted, ids) for r in rowsets]
    total = sum(p.bytes for p in parts)
    if total > MAX_PIECES * split_bytes:
        raise InvalidArgument(
            f"split_bytes={split_bytes} makes {-int(-total // split_bytes)} pieces of one tablet; at most "
            f"{MAX_PIECES}: choose pieces of {-int(-total // MAX_PIECES)} bytes or more"
        )
    places = sorted(place for p in parts for place in p.places(split_bytes / GRAINS))
    return _cuts(places, wanted.within.lower, split_bytes)


def _cuts(places: Sequence[tuple[bytes, float]], last: bytes, split_bytes: int) -> list[bytes]:
    found: list[bytes] = []
    before = 0.0
    for key, size in places:
        if before >= split_bytes and key > last:
            found.append(key)
            last, before = key, 0.0
        before += size
    if found and before < split_bytes / 2:
        found.pop()
    return found


class _Part:
    """Distribution of one rowset's bytes over its sorted keys.

    Attributes:
        bytes: size of the selected rows and columns, in bytes.
    """

    def __init__(
        self, rowset: RowSetView, schema: Schema, wanted: ScanFilter, columns: Iterable[ColumnId]
    ) -> None:
        self.keys = rowset.keys
        low, high = row_range(rowset, schema, wanted)
        if low < high and not rowset.is_sorted:
            self.keys = rowset.keys.take(
                np.asarray(pc.sort_indices(rowset.keys.as_arrow()), np.int64)
            )
            low = first_at_least(self.keys, wanted.within.lower, 0, rowset.rows)
            if wanted.within.upper is not None:
                high = first_at_least(self.keys, wanted.within.upper, low, rowset.rows)
        self.low, self.high, self.bytes = low, high, 0.0
        if low < high:
            self.starts, self.ends = _sizes(rowset, columns)
            self.first = self._bytes_before(low)
            self.bytes = self._bytes_before(high) - self.first

    def _bytes_before(self, row: int) -> float:
        return float(np.interp(row, self.starts, self.ends))

    def places(self, grain: float) -> list[tuple[bytes, float]]:
        """Return keys, and after each of them the bytes up to the next one: about `grain`."""
        if not self.bytes:
            return []
        steps = int(np.ceil(self.bytes / grain))
        step = self.bytes / steps
        at = np.interp(self.first + step * np.arange(steps), self.ends, self.starts)
        rows = at.astype(np.int64).clip(self.low, self.high - 1)
        return [(self.keys.key_at(int(row)), step) for row in rows]


def _sizes(rowset: RowSetView, columns: Iterable[ColumnId]) -> tuple[Int64s, Int64s]:
    """Return positions of rows, and the bytes before each; of rows in memory, as if all had the same."""
    chunks = rowset.chunks
    sizes = [sum(chunks.bytes_of(n, c) for c in columns) for n in range(len(chunks.starts) - 1)]
    if not rowset.is_sorted:
        return np.array([0, rowset.rows]), np.array([0, sum(sizes)])
    return chunks.starts, np.cumsum([0, *sizes])
