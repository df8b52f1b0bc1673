"""Look-ups by key: the version of each key that is visible at a time. Lane COMPUTE."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument, TooLarge
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column, Schema, arrow_schema
from nyala.tablet.kernels import key_index
from nyala.tablet.read.point_lookup import find_one, hash_of
from nyala.tablet.rows.gathering import gather, one_row
from nyala.tablet.rows.rowset import HashKeys, Int64s, RowSetView, Uint64s
from nyala.tablet.write.row_checks import keys_of, null_flags

ROW_FIELD = pa.field("_row", pa.int64(), nullable=False)
_NONE, _FIRST = pa.array([], pa.int64()), pa.array([0], pa.int64())


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
        rowsets: rowsets of the view, oldest first.
        schema: schema of the table.
        at: hybrid time.
        keys: the key columns by name, of their stored types; a null finds nothing.
        columns: what to return.
        seed: seed of the index hash.
        hash_keys: the index hash.

    Raises:
        InvalidArgument: `keys` are not the key columns.
        TooLarge: a string column of the answer would pass 2 GiB.
    """
    given = _given(keys, schema)
    todo = _positions(given)
    encoded = keys_of(given, schema)
    if len(todo) == keys.num_rows == 1:
        arrays, rows_of = _one(rowsets, at, encoded.key_at(0), columns, seed, hash_keys)
    else:
        hashes = hash_keys(encoded.offsets, encoded.data, seed)
        which, rows = _find(rowsets, at, encoded, hashes, todo)
        present = np.flatnonzero(which >= 0)
        try:
            arrays = gather([r.chunks for r in rowsets], which[present], rows[present], columns)
        except (pa.ArrowInvalid, pa.ArrowCapacityError) as err:
            raise TooLarge(
                f"the rows of {len(present)} keys do not fit into one response; request fewer at a time"
            ) from err
        rows_of = pa.array(present)
    whole = len(columns) == len(schema.columns) and list(columns) == list(schema.columns)
    fields = schema.arrow if whole else arrow_schema(columns)
    return pa.RecordBatch.from_arrays([*arrays, rows_of], schema=fields.append(ROW_FIELD))


def _one(
    rowsets: Sequence[RowSetView],
    at: int,
    key: bytes,
    columns: Sequence[Column],
    seed: int,
    hash_keys: HashKeys,
) -> tuple[list[pa.Array], pa.Array]:
    """Return the columns of one key's row, and which of the keys (the only one) has a row."""
    place = find_one(rowsets, at, key, hash_of(key, seed, hash_keys))
    if place is None:
        return [pa.array([], c.type) for c in columns], _NONE
    return one_row(place[0].chunks, place[1], columns), _FIRST


def _find(
    rowsets: Sequence[RowSetView], at: int, keys: KeyBytes, hashes: Uint64s, todo: Int64s
) -> tuple[Int64s, Int64s]:
    """Return the rowset and the row of the version of each key that is visible at a time, or -1, -1.

    `todo` marks the keys to search for. The newest rowset is first: a key visible in one is visible in no
    other.
    """
    which, rows = np.full(len(keys), -1, np.int64), np.full(len(keys), -1, np.int64)
    low, high = _ends(keys)
    stamp = np.uint64(at)
    for number in reversed(range(len(rowsets))):
        rowset = rowsets[number]
        if rowset.lifetimes.none_at(at) or _disjoint(rowset.key_range, low, high):
            continue
        found = np.empty(len(todo), np.int64)
        key_index.find(
            rowset.slots, rowset.keys.layout, rowset.keys.data, rowset.rows, rowset.prev,
            keys.layout, keys.data, hashes, todo, found,
        )  # fmt: skip
        key_index.version_at(
            rowset.keys.layout, rowset.keys.data, rowset.ins, rowset.ends, rowset.prev,
            stamp, found,
        )  # fmt: skip
        hits = found >= 0
        which[todo[hits]] = number
        rows[todo[hits]] = found[hits]
        todo = todo[~hits]
        if not len(todo):
            break
    return which, rows


def _ends(keys: KeyBytes) -> tuple[bytes, bytes]:
    """Return the least and the greatest key."""
    found = pc.min_max(keys.as_arrow()) if len(keys) else {}
    return (found["min"].as_py(), found["max"].as_py()) if found else (b"", b"")


def _disjoint(key_range: tuple[bytes, bytes] | None, low: bytes, high: bytes) -> bool:
    return key_range is not None and (high < key_range[0] or low > key_range[1])


def _given(keys: pa.RecordBatch, schema: Schema) -> dict[ColumnId, pa.Array]:
    """Return the key columns of a look-up; raise InvalidArgument where they are not these."""
    try:
        given = {c.id: keys.column(c.name) for c in schema.key_columns}
    except KeyError:  # there is none of the name, or there are several
        given = {}
    if not given or any(given[c.id].type != c.type for c in schema.key_columns):
        expected = {c.name: c.type for c in schema.key_columns}
        named = [(f.name, f.type) for f in keys.schema]
        raise InvalidArgument(
            f"a look-up needs the key columns {expected}; it was given {named}".replace(
                "DataType", ""
            )
        )
    return given


def _positions(given: Mapping[ColumnId, pa.Array]) -> Int64s:
    """Return which rows can be found at all: those without a null."""
    arrays = list(given.values())
    count = len(arrays[0])
    if not any(array.null_count for array in arrays):
        return np.arange(count)
    nulls = np.zeros(count, np.bool_)
    for array in arrays:
        nulls |= null_flags(array)
    return np.flatnonzero(~nulls)
