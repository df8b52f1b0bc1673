"""Checksum of rows for the comparison of replicas, independent of the order of rows and of batches.

Each row is hashed to a number, from all its columns and their ids; the numbers are added. Nothing is stored:
both sides compute it, so it may change between versions of nyala.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys.hashing import hash_bytes

MODULO = 1 << 64
_NULL = np.uint64(0x9AE16A3B2F90404F)
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Of SplitMix64's last steps: what keeps a sum of rows from being a sum of columns."""


def checksum(batch: pa.RecordBatch, ids: Sequence[ColumnId]) -> int:
    """Return the sum of a batch's rows, 0 <= sum < 2**64; those of batches are added modulo 2**64.

    Args:
        batch: record batch with the stored types (`common/schema.py`).
        ids: ids of its columns.
    """
    rows = np.zeros(batch.num_rows, np.uint64)
    for number, column in zip(ids, batch.columns, strict=True):
        rows = _mixed(rows + _hashes(column, int(number) + 1))
    return int(rows.sum(dtype=np.uint64))


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    for shift, factor in _STEPS:
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def _hashes(column: pa.Array, seed: int) -> npt.NDArray[np.uint64]:
    """Return a number for each value; the value below a null is ignored."""
    if not len(column):
        return np.zeros(0, np.uint64)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    buffer = column.buffers()[-1]
    data = np.zeros(0, np.uint8) if buffer is None else np.frombuffer(buffer, np.uint8)
    first, count = column.offset, len(column)
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        ends = np.frombuffer(column.buffers()[1], np.int32)[first : first + count + 1]
        offsets = ends.astype(np.int64)
    else:
        offsets = np.arange(first, first + count + 1, dtype=np.int64) * column.type.byte_width
    found = hash_bytes(offsets, data, seed)
    if column.null_count:
        found[column.is_null().to_numpy(zero_copy_only=False)] = _NULL ^ np.uint64(seed)
    return found
