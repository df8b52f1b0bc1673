"""Look-ups of a few keys one by one, without arrays: what `lookup.py` does, for the loop's own thread.

For one key the calls into numpy, numba and Arrow cost more than the look-up; most of all when each look-up
finds their code and data gone from the processor's caches.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from nyala.common.keys.hashing import hash_bytes, hash_one
from nyala.common.schema import Column
from nyala.common.values.plain_rows import plain_value
from nyala.tablet.rows.rowset import HashKeys, RowSetView

_LOW = 0xFFFFFFFF


def few(
    rowsets: Sequence[RowSetView],
    at: int,
    keys: Sequence[bytes],
    columns: Sequence[Column],
    *,
    seed: int,
    hash_keys: HashKeys,
) -> list[list[Any] | None]:
    """Return the visible row of each key as `plain_value`s, None where there is none.

    Args:
        rowsets: rowsets of the view, oldest first.
        at: hybrid time.
        keys: encoded; bytes that no key has find nothing.
        columns: what to return.
        seed: seed of the index hash.
        hash_keys: the index hash.
    """
    found: list[list[Any] | None] = []
    for key in keys:
        place = find_one(rowsets, at, key, hash_of(key, seed, hash_keys))
        found.append(None if place is None else _values(*place, columns))
    return found


def hash_of(key: bytes, seed: int, hash_keys: HashKeys) -> int:
    """Return the index hash of one key.

    Args:
        key: encoded key.
        seed: seed of the index hash.
        hash_keys: the index hash.
    """
    if hash_keys is hash_bytes:
        return hash_one(key, seed)
    offsets = np.array([0, len(key)], np.int64)
    return int(hash_keys(offsets, np.frombuffer(key, np.uint8), seed)[0])


def find_one(
    rowsets: Sequence[RowSetView], at: int, key: bytes, h: int
) -> tuple[RowSetView, int] | None:
    """Return the version of a key that is visible at a time; in the newest rowset that has one.

    Args:
        rowsets: rowsets of the tablet.
        at: hybrid time of the read.
        key: encoded key.
        h: hash of the key.
    """
    for rowset in reversed(rowsets):
        within = rowset.key_range
        if rowset.lifetimes.none_at(at):
            continue
        if within is not None and not within[0] <= key <= within[1]:
            continue
        row = _version_at(rowset, _newest(rowset, key, h), at)
        if row >= 0:
            return rowset, row
    return None


def _newest(rowset: RowSetView, key: bytes, h: int) -> int:
    """Return the newest row of a key that the view knows, or -1; see `kernels.find`."""
    slot_at, size, tag = rowset.slots.item, len(rowset.slots), h >> 32
    at = (h & _LOW) * size >> 32
    while slot := slot_at(at):
        if slot >> 32 == tag:
            row = (slot & _LOW) - 1
            while row >= rowset.rows:
                row = rowset.prev.item(row)
            if row >= 0 and rowset.keys.key_at(row) == key:
                return row
        at += 1
        if at == size:
            at = 0
    return -1


def _version_at(rowset: RowSetView, row: int, at: int) -> int:
    """Return the version that is visible at a time, from the newest one, or -1; see `kernels.version_at`."""
    began, chained = rowset.ins.item, len(rowset.prev)
    while row >= 0 and began(row) > at:
        if chained:
            row = rowset.prev.item(row)
        elif row > 0 and rowset.keys.key_at(row) == rowset.keys.key_at(row - 1):
            row -= 1
        else:
            return -1
    if row < 0:
        return -1
    end = rowset.ends.item(row)
    return row if not end or end > at else -1


def _values(rowset: RowSetView, row: int, columns: Sequence[Column]) -> list[Any]:
    chunks = rowset.chunks
    chunk = int(chunks.starts.searchsorted(row, side="right")) - 1
    local = row - chunks.starts.item(chunk)
    return [plain_value(chunks.column(chunk, column)[local]) for column in columns]
