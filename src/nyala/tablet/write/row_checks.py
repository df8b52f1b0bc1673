"""Checks of rows that need no look-up of their keys, for a whole batch at once.

Pure functions from a batch to an error code per row; the codes are those of `row_decisions.py`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import KeyBytes, encode_keys
from nyala.common.schema import Column, Schema
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files.columns import cell_sizes
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.kernels import gather_values, row_decisions

MAX_KEY_BYTES = 16 << 10
"""Maximum bytes of an encoded key, as Kudu's limit."""

_VARYING = (pa.string().id, pa.binary().id)
Flags = npt.NDArray[np.bool_]


def keys_of(columns: Mapping[ColumnId, pa.Array], schema: Schema) -> KeyBytes:
    """Encode the keys of a batch; a row with a null in its key gets some key (`check` names it)."""
    arrays = [without_nulls(columns[c.id]) for c in schema.key_columns]
    return encode_keys(arrays, [c.type for c in schema.key_columns])


def without_nulls(array: pa.Array) -> pa.Array:
    """Return an array whose null slots count as values, with unspecified contents."""
    if not array.null_count:
        return array
    buffers = array.buffers()
    return pa.Array.from_buffers(array.type, len(array), [None, *buffers[1:]], 0, array.offset)


def null_flags(array: pa.Array) -> Flags:
    """Return where an array is null."""
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), np.bool_)


def check(
    batch: pa.RecordBatch,
    places: Mapping[ColumnId, int],
    values: Sequence[tuple[int, Column]],
    ops: npt.NDArray[np.uint8],
    keys: KeyBytes,
    schema: Schema,
    *,
    mixed: bool,
    largest: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
    """Return an error code per row, 0 for none, and the position in the schema of the column meant.

    Args:
        batch: the rows.
        places: position in the batch of each column.
        values: columns to look at that are not in the key, and their positions in the schema.
        ops: op code of each row.
        keys: keys of the rows.
        schema: schema of the table.
        mixed: the op codes are the rows' own.
        largest: bytes that no cell can be larger than.
    """
    bad = np.zeros(len(ops), np.uint8)
    where = np.empty(len(ops), np.int32)
    where.fill(-1)

    def flag(rows: Flags, code: int, column: int) -> None:
        rows = rows & (bad == 0)
        bad[rows] = code
        where[rows] = column

    if mixed:
        flag((ops < RowOp.INSERT) | (ops > RowOp.DELETE_IGNORE), row_decisions.OUT_OF_RANGE, -1)
    for number, i in enumerate(schema.key_ids):
        array = batch.column(places[i])
        if array.null_count:
            flag(null_flags(array), row_decisions.NULL_KEY, number)
    if len(keys.data) > MAX_KEY_BYTES and not keys.width:
        flag(np.diff(keys.offsets) > MAX_KEY_BYTES, row_decisions.TOO_LARGE, -1)
    for number, column in values:  # a delete needs its key only
        if column.nullable and largest <= MAX_CELL_BYTES:
            continue
        array = batch.column(places[column.id])
        if array.null_count and not column.nullable:
            flag(null_flags(array) & (ops < RowOp.DELETE), row_decisions.NULL_VALUE, number)
        if largest > MAX_CELL_BYTES and _may_be_large(array):
            cells = cell_sizes(array)
            assert cells is not None, f"column {column.id} has cells of one size"
            flag((cells > MAX_CELL_BYTES) & (ops < RowOp.DELETE), row_decisions.TOO_LARGE, number)
    return bad, where


def _may_be_large(array: pa.Array) -> bool:
    """Return whether a string or binary value may be above the limit, possibly a null one."""
    if array.type.id not in _VARYING or not len(array):
        return False
    _, offsets, data = array.buffers()
    if data is None or data.size <= MAX_CELL_BYTES:
        return False
    longest = gather_values.longest(offsets.address + 4 * array.offset, len(array))
    return bool(longest > MAX_CELL_BYTES)
