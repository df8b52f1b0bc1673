"""Kernels over all rowsets of a tablet at once: search of keys' live versions, and ending of versions.

A write searches every rowset that may contain its keys. One call does so for all rowsets, because a call for
each would cost a small write more than the search. A rowset is a row of numbers and addresses (`PLACE`); the
caller keeps the arrays at these addresses alive. Rules as in common/kernels.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types

from nyala.tablet.kernels.gather_values import before
from nyala.tablet.kernels.key_bytes import (
    FAR,
    NEAR,
    home,
    newest_row,
    prefetch,
    prefetch_key,
    u64_at,
)

_U = np.uint64
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I64S = types.Array(types.int64, 2, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_U64 = types.Array(types.uint64, 1, "C")
_OUT_U64S = types.Array(types.uint64, 2, "C")

PLACE = SLOTS, SIZE, LAYOUT, KEYS, ROWS, PREV, ENDS = range(7)
"""Of a rowset: address of its slots, and how many; addresses of its keys' positions and bytes; rows;
addresses of each row's older one (0: none is asked for) and of each row's end."""


@njit(
    types.int64(_I64S, _U8, _I64, _U8, _U64, _I64, _OUT_I64, _OUT_I64, _OUT_I64),
    nogil=True,
    cache=True,
)
def find_live(
    places: Any, skip: Any, key_offsets: Any, key_data: Any, hashes: Any, wanted: Any,
    which: Any, found: Any, newest: Any,
) -> Any:  # fmt: skip
    """Look for the live versions of the wanted keys in one rowset after the other; return how many there are.

    `which` and `found` get the rowset and the row of each, or -1; `newest` the newest row of each key in
    rowset 0, live or not, or -1. Rowsets with `skip` have none of them.

    Args:
        places: a row of `PLACE` per rowset.
        skip: rowsets left out, where not 0.
        key_offsets: offsets of the wanted keys.
        key_data: bytes of the wanted keys.
        hashes: hash of each key.
        wanted: numbers of the wanted keys.
        which: rowset of each live version, or -1; written to.
        found: row of each live version; written to.
        newest: newest row of each key in rowset 0, or -1; written to.
    """
    width = key_offsets[0] if len(key_offsets) == 1 else types.int64(0)
    key_layout, keys_at = key_offsets.ctypes.data, key_data.ctypes.data
    count = len(wanted)
    which[:] = -1
    newest[:] = -1
    live = 0
    for number in range(len(places)):
        if skip[number] != 0 or live == count:
            continue
        slots, size, rows = places[number, SLOTS], _U(places[number, SIZE]), places[number, ROWS]
        layout, data, prev = places[number, LAYOUT], places[number, KEYS], places[number, PREV]
        ends = u64_at(places[number, ENDS])
        for i in range(count):
            if i + FAR < count and which[i + FAR] < 0:
                prefetch(slots + 8 * types.int64(home(hashes[wanted[i + FAR]], size)))
            if i + NEAR < count and which[i + NEAR] < 0:
                near = hashes[wanted[i + NEAR]]
                prefetch_key(u64_at(slots)[home(near, size)], width, layout, data, rows, near)
            if which[i] >= 0:
                continue
            key = wanted[i]
            row = newest_row(
                slots, size, width, layout, data, rows, prev, key_layout, keys_at, key, hashes[key]
            )
            if number == 0:
                newest[i] = row
            if row >= 0 and ends[row] == _U(0):
                which[i] = number
                found[i] = row
                live += 1
    return live


@njit(
    types.int64(_I64S, _I64, _I64, _I64, _U64, _OUT_I64, _OUT_I64, _OUT_U64, _OUT_U64S),
    nogil=True,
    cache=True,
)
def end_live(
    places: Any, which: Any, found: Any, ended: Any, stamps: Any,
    starts: Any, rows: Any, at: Any, spans: Any,
) -> Any:  # fmt: skip
    """Write the end of live versions: of each key at the stamp of the write `ended`, or none (-1).

    `which`, `found` and `ended` are of keys, as `find_live` and `decide` leave them. The rows that end in
    rowset n go to `rows` from `starts[n]` to `starts[n + 1]`, their stamps to `at`, the least and the
    greatest of them to `spans[n]`. Returns 0; or 1 + a row that had ended already.

    Args:
        places: a row of `PLACE` per rowset.
        which: rowset of each key's live version, or -1.
        found: row of each key's live version.
        ended: index of the write that ends each version; -1: none.
        stamps: hybrid time of each write.
        starts: position in `rows` of each rowset's first; written to.
        rows: rows that end, by rowset; written to.
        at: hybrid time at which each of `rows` ends; written to.
        spans: least and greatest of them by rowset; written to.
    """
    starts[:] = 0
    for key in range(len(which)):
        if which[key] >= 0 and ended[key] >= 0:
            starts[which[key] + 1] += 1
    for number in range(len(places)):
        starts[number + 1] += starts[number]
    cursor = starts.copy()
    for key in range(len(which)):
        number = which[key]
        if number < 0 or ended[key] < 0:
            continue
        row, stamp, place = found[key], stamps[ended[key]], cursor[number]
        ends = u64_at(places[number, ENDS])
        if ends[row] != _U(0):
            return 1 + row
        ends[row] = stamp
        if place == starts[number] or stamp < spans[number, 0]:
            spans[number, 0] = stamp
        if place == starts[number] or stamp > spans[number, 1]:
            spans[number, 1] = stamp
        rows[place] = row
        at[place] = stamp
        cursor[number] = place + 1
    return 0


@njit(types.UniTuple(types.int64, 2)(_I64, _U8), nogil=True, cache=True)
def extremes(offsets: Any, data: Any) -> Any:
    """Return where the least and the greatest of some keys are, one at least."""
    base = data.ctypes.data
    least = greatest = types.int64(0)
    for i in range(1, len(offsets) - 1):
        at, size = base + offsets[i], offsets[i + 1] - offsets[i]
        if before(at, size, base + offsets[least], offsets[least + 1] - offsets[least]):
            least = i
        elif before(base + offsets[greatest], offsets[greatest + 1] - offsets[greatest], at, size):
            greatest = i
    return least, greatest
