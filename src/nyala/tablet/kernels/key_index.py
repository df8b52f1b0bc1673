"""Numba kernels of the tablet: grouping of keys, the key index, visibility.

Rules, for every module of kernels in this package (no other one imports numba): each has one explicit
signature, compiled (or read from numba's cache) when its module is imported; it takes read-only arrays and
releases the GIL.

A hash match is compared with the key bytes, always. Index slots are uint64: the upper 32 bits of the
key's hash, then row + 1; 0 is empty; the lower half chooses the slot. A key's slot names its newest row.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types

from nyala.tablet.kernels.key_bytes import (
    FAR,
    NEAR,
    following,
    home,
    newest_row,
    prefetch,
    prefetch_key,
    same,
)

_U = np.uint64
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_U64 = types.Array(types.uint64, 1, "C")
_OUT_U8 = types.Array(types.uint8, 1, "C")

MAX_ROWS = (1 << 32) - 2
"""Rows of one rowset: a slot has 32 bits for the row."""


def _kernel(signature: Any) -> Any:
    return njit(signature, nogil=True, cache=True)


@_kernel(types.int64(_I64, _U8, _U64, _U8, _OUT_I64, _OUT_I64))
def group(offsets: Any, data: Any, hashes: Any, skip: Any, numbers: Any, first: Any) -> Any:
    """Number the distinct keys of a batch in order of appearance; return how many there are.

    `numbers[i]` is the number of row i's key (-1 where `skip[i]`), `first[g]` the first row with key g.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        hashes: hash of each key.
        skip: rows left out, where not 0.
        numbers: number of each row's key; written to.
        first: first row with each key; written to.
    """
    width = offsets[0] if len(offsets) == 1 else types.int64(0)
    layout, bytes_at = offsets.ctypes.data, data.ctypes.data
    size = 16
    while size < 2 * len(numbers):
        size *= 2
    slots = np.zeros(size, np.int64)
    mask = _U(size - 1)
    count = 0
    for i in range(len(numbers)):
        if skip[i] != 0:
            numbers[i] = -1
            continue
        at = hashes[i] & mask
        while True:
            found = slots[at] - 1
            if found < 0:
                slots[at] = count + 1
                numbers[i] = count
                first[count] = i
                count += 1
                break
            row = first[found]
            alike = hashes[row] == hashes[i]
            if alike and same(width, layout, bytes_at, row, layout, bytes_at, i):
                numbers[i] = found
                break
            at = (at + _U(1)) & mask
    return count


@_kernel(types.void(_U64, _I64, _U8, types.int64, _I64, _I64, _U8, _U64, _I64, _OUT_I64))
def find(
    slots: Any, offsets: Any, data: Any, rows: Any, prev: Any,
    key_offsets: Any, key_data: Any, hashes: Any, wanted: Any, out: Any,
) -> None:  # fmt: skip
    """Write the newest row < `rows` of each wanted key in one rowset, or -1; see `newest_row`.

    Args:
        slots: the index: row number and hash bits, a power of two long.
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        rows: rows known to the reader; newer ones are skipped.
        prev: older version of the same key, per row; -1: none.
        key_offsets: offsets of the wanted keys.
        key_data: bytes of the wanted keys.
        hashes: hash of each key.
        wanted: numbers of the wanted keys.
        out: written to.
    """
    width = offsets[0] if len(offsets) == 1 else types.int64(0)
    layout, bytes_at, slots_at = offsets.ctypes.data, data.ctypes.data, slots.ctypes.data
    key_layout, keys_at, prev_at = key_offsets.ctypes.data, key_data.ctypes.data, prev.ctypes.data
    size = _U(len(slots))
    count = len(out)
    for i in range(count):
        if i + FAR < count:
            prefetch(slots_at + 8 * types.int64(home(hashes[wanted[i + FAR]], size)))
        if i + NEAR < count:
            near = hashes[wanted[i + NEAR]]
            prefetch_key(slots[home(near, size)], width, layout, bytes_at, rows, near)
        key = wanted[i]
        out[i] = newest_row(
            slots_at,
            size,
            width,
            layout,
            bytes_at,
            rows,
            prev_at,
            key_layout,
            keys_at,
            key,
            hashes[key],
        )


@_kernel(types.void(_I64, _U8, _U64, _U64, _I64, types.uint64, _OUT_I64))
def version_at(offsets: Any, data: Any, ins: Any, ends: Any, prev: Any, at: Any, rows: Any) -> None:
    """Replace each newest row by the version of its key that is visible at a time, or -1.

    Older versions are along `prev`, or, where that is empty (a sorted rowset), the rows just before.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        ins: hybrid time at which each version begins.
        ends: hybrid time at which each version ends; 0: it has not.
        prev: older version of the same key, per row; -1: none.
        at: hybrid time of the read.
        rows: newest row of each wanted key; replaced.
    """
    width = offsets[0] if len(offsets) == 1 else types.int64(0)
    layout, bytes_at = offsets.ctypes.data, data.ctypes.data
    for i in range(len(rows)):
        row = rows[i]
        while row >= 0 and ins[row] > at:
            if len(prev) > 0:
                row = prev[row]
            elif row > 0 and same(width, layout, bytes_at, row, layout, bytes_at, row - 1):
                row -= 1
            else:
                row = -1
        rows[i] = row if row >= 0 and ends[row] - _U(1) >= at else -1


@_kernel(types.void(_OUT_U64, _U64, _I64, _I64))
def link(slots: Any, hashes: Any, rows: Any, olds: Any) -> None:
    """Enter rows into an index: in the slot of `olds[i]`, the same key's older row, or a free one.

    Args:
        slots: the index: row number and hash bits, a power of two long.
        hashes: hash of each key.
        rows: rows to enter.
        olds: row of the older version of the key; -1: none.
    """
    size = _U(len(slots))
    slots_at = slots.ctypes.data
    tag = ~_U(0xFFFFFFFF)
    for i in range(len(rows)):
        if i + FAR < len(rows):
            prefetch(slots_at + 8 * types.int64(home(hashes[rows[i + FAR]], size)))
        h = hashes[rows[i]]
        upper = h & tag
        at = home(h, size)
        before = _U(0)
        if olds[i] >= 0:
            before = upper | _U(olds[i] + 1)
        while slots[at] != before:
            at = following(at, size)
        slots[at] = upper | _U(rows[i] + 1)


@_kernel(types.void(_U64, _U64, _OUT_U64))
def relink(slots: Any, hashes: Any, out: Any) -> None:
    """Enter all that an index names into an empty one of another size.

    Args:
        slots: the old index.
        hashes: hash of each key.
        out: the new index, empty.
    """
    size = _U(len(out))
    low = _U(0xFFFFFFFF)
    hashes_at = hashes.ctypes.data
    for i in range(len(slots)):
        if i + FAR < len(slots) and slots[i + FAR] != _U(0):
            prefetch(hashes_at + 8 * (types.int64(slots[i + FAR] & low) - 1))
        slot = slots[i]
        if slot == _U(0):
            continue
        at = home(hashes[types.int64(slot & low) - 1], size)
        while out[at] != _U(0):
            at = following(at, size)
        out[at] = slot


@_kernel(
    types.int64(
        _OUT_U64, _OUT_U64, _OUT_U64, _OUT_I64, _OUT_U64, types.int64, _U64,
        types.Array(types.int64, 2, "A", readonly=True), _U64, _I64,
    )
)  # fmt: skip
def enter(
    slots: Any, all_hashes: Any, ins: Any, prev: Any, ends: Any,
    first: Any, hashes: Any, made: Any, stamps: Any, newest: Any,
) -> Any:  # fmt: skip
    """Enter new versions (`row_decisions.decide`) into a memory rowset from row `first` on, and its index.

    `hashes` are of the rows that `made` names as sources, `stamps` of its writes, `newest` each key's newest
    row so far, or -1. Returns how many of them have ended already.

    Args:
        slots: the index: row number and hash bits, a power of two long.
        all_hashes: hash of every row; written to.
        ins: hybrid time at which each version begins; written to.
        prev: older version of the same key, per row; written to.
        ends: hybrid time at which each version ends; written to.
        first: number of the first new row.
        hashes: hash of each source row.
        made: new versions, as `row_decisions.decide` leaves them.
        stamps: hybrid time of each write.
        newest: newest row of each key before; -1: none.
    """
    size = _U(len(slots))
    slots_at = slots.ctypes.data
    tag = ~_U(0xFFFFFFFF)
    ended = 0
    for v in range(made.shape[1]):
        if v + FAR < made.shape[1]:
            prefetch(slots_at + 8 * types.int64(home(hashes[made[1, v + FAR]], size)))
        row = first + v
        h = hashes[made[1, v]]
        all_hashes[row] = h
        ins[row] = stamps[made[2, v]]
        if made[3, v] >= 0:
            ends[row] = stamps[made[3, v]]
            ended += 1
        old = newest[made[0, v]] if made[4, v] < 0 else first + made[4, v]
        prev[row] = old
        upper = h & tag
        at = home(h, size)
        before = _U(0)
        if old >= 0:
            before = upper | _U(old + 1)
        while slots[at] != before:
            at = following(at, size)
        slots[at] = upper | _U(row + 1)
    return ended


@_kernel(types.int64(_OUT_U64, _I64, _U64))
def set_ends(ends: Any, rows: Any, stamps: Any) -> Any:
    """Write the timestamps at which rows end; return a row that had ended already, or -1.

    Args:
        ends: hybrid time at which each version ends; written to.
        rows: rows that end.
        stamps: hybrid time at which each row ended.
    """
    for i in range(len(rows)):
        if ends[rows[i]] != _U(0):
            return rows[i]
        ends[rows[i]] = stamps[i]
    return -1


@_kernel(types.int64(_OUT_U64, types.uint64, _OUT_I64))
def end_all(ends: Any, stamp: Any, rows: Any) -> Any:
    """Write the timestamp at which all live rows end; return how many there are, or one more than fit.

    Args:
        ends: hybrid time at which each version ends; 0: it has not; written to.
        stamp: hybrid time at which the live ones end.
        rows: the rows that ended, ascending; written to.
    """
    count = 0
    for i in range(len(ends)):
        if ends[i] == _U(0):
            if count == len(rows):
                return count + 1
            ends[i] = stamp
            rows[count] = i
            count += 1
    return count


@_kernel(types.int64(_U64, _U64, types.uint64, _OUT_U8))
def visible(ins: Any, ends: Any, at: Any, out: Any) -> Any:
    """Flag the versions that are visible at a time; return how many.

    Args:
        ins: hybrid time at which each version begins.
        ends: hybrid time at which each version ends; 0: it has not.
        at: hybrid time of the read.
        out: 1 for each visible version; written to.
    """
    count = 0
    for i in range(len(out)):
        seen = (ins[i] <= at) & (ends[i] - _U(1) >= at)
        out[i] = seen
        count += seen
    return count


def warm() -> int:
    """Make sure that every kernel is compiled and in numba's cache; return how many there are.

    Importing this package did the work: the launcher calls this once before it starts many processes.
    """
    from nyala.common.keys.hashing import kernels
    from nyala.tablet.kernels import (
        gather_values,
        ipc_messages,
        key_bytes,
        live_versions,
        row_decisions,
        sort_rows,
        successors,
    )

    kernels()
    others = (
        row_decisions, gather_values, key_bytes, live_versions, ipc_messages, sort_rows, successors,
    )  # fmt: skip
    modules = (globals(), *(vars(m) for m in others))
    return sum(hasattr(value, "py_func") for names in modules for value in names.values())
