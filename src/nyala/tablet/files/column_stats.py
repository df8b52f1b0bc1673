"""Statistics of a column, per block while it is written: least and greatest value, null count."""

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.schema import Column
from nyala.tablet.kernels import gather_values

_MAX_BYTES = 1024
"""Maximum length in bytes of a minimum or maximum; a column with a longer one has no statistics."""


class RunningStats:
    """Running statistics of one column of a file.

    Args:
        column: it.

    Attributes:
        column: as given.
        known: the least and greatest values are valid.
        has_nulls: some value is null.
    """

    def __init__(self, column: Column) -> None:
        self.column = column
        self.known = not pa.types.is_boolean(column.type)
        self.has_nulls = False
        self._ends: list[pa.Scalar] = []  # least and greatest of each block

    def add(self, array: pa.Array) -> None:
        """Add the next block."""
        if not self.known:
            return
        self.has_nulls = self.has_nulls or array.null_count > 0
        if pa.types.is_floating(array.type) and pc.any(pc.is_nan(array)).as_py():
            self.known = False  # NaN orders with nothing
            return
        ends = _extremes(array)
        self._ends += ends
        sizes = [len(e.as_buffer()) for e in ends if e.is_valid and is_varying(e.type)]
        self.known = max(sizes, default=0) <= _MAX_BYTES

    def rows(self) -> pa.Array:
        """Return the column's part of section 2: two rows for all blocks, then two for each."""
        ends = pa.array(self._ends, self.column.type)
        whole = pc.min_max(ends)
        return pa.concat_arrays([pa.array([whole["min"], whole["max"]], ends.type), ends])


def _extremes(array: pa.Array) -> list[pa.Scalar]:
    """Return the least and the greatest value, null if there is none."""
    if not is_varying(array.type) or array.null_count or not len(array):
        return list(pc.min_max(array).values())
    _, offsets, data = array.buffers()
    if data is None or not data.size:
        return [array[0], array[0]]
    first = offsets.address + 4 * array.offset
    return [array[at] for at in gather_values.extremes(first, data.address, len(array))]


def is_varying(kind: pa.DataType) -> bool:
    """Return whether cells of a type vary in size."""
    return kind in (pa.string(), pa.binary())
