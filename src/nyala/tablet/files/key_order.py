"""The order in which a rowset is written, and keys in that order."""

import numpy as np

from nyala.common.keys.key_bytes import KeyBytes, offsets_of
from nyala.tablet.kernels import sort_rows
from nyala.tablet.rows.rowset import Int64s, Uint64s


def order_of(keys: KeyBytes, ins: Uint64s) -> Int64s:
    """Return the order of (key, ins), by one word if the keys differ in no other."""
    words = keys.words()
    if words is None:
        words, positions = np.empty(len(keys), np.uint64), np.empty(8, np.int64)
        count = sort_rows.varying(keys.offsets, keys.data, positions)
        if count < 0:
            return _order_by_runs(keys, ins, words)
        sort_rows.pack(keys.offsets, keys.data, positions[:count], words)
    order = np.argsort(words)  # much faster than a stable sort, or one by two columns
    sort_rows.sort_ties(words, ins, order)
    return order


def _order_by_runs(keys: KeyBytes, ins: Uint64s, words: Uint64s) -> Int64s:
    shared = sort_rows.common_prefix(keys.offsets, keys.data, ins)
    if shared < 0:
        return np.arange(len(keys))
    sort_rows.words_at(keys.offsets, keys.data, shared, words)
    order = np.argsort(words)
    sort_rows.sort_runs(keys.offsets, keys.data, ins, shared, words[order], order)
    return order


def take_many(keys: KeyBytes, rows: Int64s) -> KeyBytes:
    """As `KeyBytes.take`, of many rows in any order."""
    if keys.width:
        return keys.take(rows)
    ends = offsets_of(np.diff(keys.offsets)[rows])
    data = np.empty(int(ends[-1]), np.uint8)
    sort_rows.take_keys(keys.offsets, keys.data, rows, ends, data)
    return KeyBytes(ends, data)
