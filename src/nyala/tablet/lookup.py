"""Look-ups by key: the version of each key that is visible at a time. Lane COMPUTE."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.tablet import kernels
from nyala.tablet.checks import keys_of, null_flags
from nyala.tablet.rowset import HashKeys, RowSetView, gather

ROW_FIELD = pa.field("_row", pa.int64(), nullable=False)


def get(
    rowsets: Sequence[RowSetView],
    schema: Schema,
    at: int,
    keys: pa.RecordBatch,
    columns: Sequence[Column],
    *,
    seed: int,
    hash_keys: HashKeys,
) -> pa.RecordBatch:
    """Return the visible rows of some keys, and `_row`, the position of each in `keys`.

    Args:
        rowsets: of the view, oldest first.
        schema: of the table.
        at: hybrid time.
        keys: the key columns by name, of their stored types; a null finds nothing.
        columns: what to return.
        seed: of the index hash.
        hash_keys: the index hash.

    Raises:
        InvalidArgument: `keys` are not the key columns.
        TooLarge: a string column of the answer would pass 2 GiB.
    """
    wanted = _positions(keys, schema)
    given = {c.id: keys.column(c.name) for c in schema.key_columns}
    encoded = keys_of(given, schema)
    hashes = hash_keys(encoded.offsets, encoded.data, seed)
    which = np.full(len(encoded), -1, np.int64)
    rows = np.full(len(encoded), -1, np.int64)
    for number in reversed(range(len(rowsets))):
        rowset = rowsets[number]
        todo = wanted[which[wanted] < 0]
        found = np.empty(len(todo), np.int64)
        kernels.find(
            rowset.slots, rowset.keys.offsets, rowset.keys.data, rowset.rows, rowset.prev,
            encoded.offsets, encoded.data, hashes, todo, found,
        )  # fmt: skip
        kernels.version_at(
            rowset.keys.offsets, rowset.keys.data, rowset.ins, rowset.ends, rowset.prev,
            np.uint64(at), found,
        )  # fmt: skip
        hits = found >= 0
        which[todo[hits]] = number
        rows[todo[hits]] = found[hits]
    present = np.flatnonzero(which >= 0)
    try:
        arrays = gather([r.chunks for r in rowsets], which[present], rows[present], columns)
    except (pa.ArrowInvalid, pa.ArrowCapacityError) as err:
        raise TooLarge(
            f"the rows of {len(present)} keys do not fit into one answer; ask for fewer at a time"
        ) from err
    fields = [*arrow_schema(columns), ROW_FIELD]
    return pa.RecordBatch.from_arrays([*arrays, pa.array(present)], schema=pa.schema(fields))


def _positions(keys: pa.RecordBatch, schema: Schema) -> np.ndarray:
    """Return which rows of `keys` can be found at all."""
    expected = {c.name: c.type for c in schema.key_columns}
    given = dict(zip(keys.schema.names, keys.schema.types, strict=True))
    if {n: given.get(n) for n in expected} != expected:
        raise InvalidArgument(
            f"a look-up needs the key columns {expected}; it was given {given}".replace(
                "DataType", ""
            )
        )
    nulls = np.zeros(keys.num_rows, np.bool_)
    for name in expected:
        if keys.column(name).null_count:
            nulls |= null_flags(keys.column(name))
    return np.flatnonzero(~nulls)
