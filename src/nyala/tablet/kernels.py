"""Numba kernels of the tablet: grouping keys, the key index, the order of row operations, visibility.

Rules: the only module of this room that imports numba. Each kernel has one explicit signature, compiled
(or read from numba's cache) when this module is imported; it takes read-only arrays and releases the GIL.
A hash match is compared with the key bytes, always. Index slots are uint64: the upper 32 bits of the
key's hash, then row + 1; 0 is empty; the lower hash bits choose the slot. A key's slot names its newest row.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types

_U = np.uint64
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_CODES = types.Array(types.int32, 2, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_I32 = types.Array(types.int32, 1, "C")
_OUT_U64 = types.Array(types.uint64, 1, "C")
_OUT_U8 = types.Array(types.uint8, 1, "C")

MAX_ROWS = (1 << 32) - 2
"""Rows of one rowset: a slot has 32 bits for the row."""

# Outcomes of a row, as `apply.py` names them. 0 is none.
ALREADY_PRESENT, NOT_FOUND, NULL_KEY, NULL_VALUE, IMMUTABLE, TOO_LARGE, OUT_OF_RANGE = range(1, 8)


def _kernel(signature: Any) -> Any:
    return njit(signature, nogil=True, cache=True)


@njit(
    types.boolean(_I64, _U8, types.int64, _I64, _U8, types.int64),
    nogil=True,
    cache=True,
    inline="always",
)
def _same(offsets: Any, data: Any, i: Any, other_offsets: Any, other: Any, j: Any) -> Any:
    at = offsets[i]
    size = offsets[i + 1] - at
    to = other_offsets[j]
    if other_offsets[j + 1] - to != size:
        return False
    for k in range(size):  # noqa: SIM110 - numba compiles the loop, not a generator
        if data[at + k] != other[to + k]:
            return False
    return True


@_kernel(types.int64(_I64, _U8, _U64, _U8, _OUT_I64, _OUT_I64))
def group(offsets: Any, data: Any, hashes: Any, skip: Any, numbers: Any, first: Any) -> Any:
    """Number the distinct keys of a batch in order of appearance; return how many there are.

    `numbers[i]` is the number of row i's key (-1 where `skip[i]`), `first[g]` the first row with key g.
    """
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
            if hashes[row] == hashes[i] and _same(offsets, data, row, offsets, data, i):
                numbers[i] = found
                break
            at = (at + _U(1)) & mask
    return count


@_kernel(types.void(_U64, _I64, _U8, types.int64, _I64, _I64, _U8, _U64, _I64, _OUT_I64))
def find(
    slots: Any, offsets: Any, data: Any, rows: Any, prev: Any,
    key_offsets: Any, key_data: Any, hashes: Any, wanted: Any, out: Any,
) -> None:  # fmt: skip
    """Write the newest row < `rows` of each wanted key in one rowset, or -1.

    `slots` may be written meanwhile: a slot that names a row >= `rows` is followed along `prev` to the
    newest row that the reader knows.
    """
    mask = _U(len(slots) - 1)
    tag = ~_U(0xFFFFFFFF)
    for i in range(len(out)):
        key = wanted[i]
        h = hashes[key]
        at = h & mask
        out[i] = -1
        while True:
            slot = slots[at]
            if slot == _U(0):
                break
            if (slot & tag) == (h & tag):
                row = types.int64(slot & _U(0xFFFFFFFF)) - 1
                while row >= rows:
                    row = prev[row]
                if row >= 0 and _same(offsets, data, row, key_offsets, key_data, key):
                    out[i] = row
                    break
            at = (at + _U(1)) & mask


@_kernel(types.void(_I64, _U8, _U64, _U64, _I64, types.uint64, _OUT_I64))
def version_at(offsets: Any, data: Any, ins: Any, ends: Any, prev: Any, at: Any, rows: Any) -> None:
    """Replace each newest row by the version of its key that is visible at a time, or -1.

    Older versions are along `prev`, or, where that is empty (a sorted rowset), the rows just before.
    """
    for i in range(len(rows)):
        row = rows[i]
        while row >= 0 and ins[row] > at:
            if len(prev) > 0:
                row = prev[row]
            elif row > 0 and _same(offsets, data, row, offsets, data, row - 1):
                row -= 1
            else:
                row = -1
        rows[i] = row if row >= 0 and ends[row] - _U(1) >= at else -1


@_kernel(types.void(_OUT_U64, _U64, _I64, _I64))
def link(slots: Any, hashes: Any, rows: Any, olds: Any) -> None:
    """Enter rows into an index: in the slot of `olds[i]`, the same key's older row, or a free one."""
    mask = _U(len(slots) - 1)
    tag = ~_U(0xFFFFFFFF)
    for i in range(len(rows)):
        h = hashes[rows[i]]
        upper = h & tag
        at = h & mask
        before = _U(0)
        if olds[i] >= 0:
            before = upper | _U(olds[i] + 1)
        while slots[at] != before:
            at = (at + _U(1)) & mask
        slots[at] = upper | _U(rows[i] + 1)


@_kernel(types.void(_I64, _U8, _OUT_U8))
def same_as_next(offsets: Any, data: Any, out: Any) -> None:
    """Mark each row whose key is also the next row's."""
    for i in range(len(out)):
        out[i] = i + 1 < len(out) and _same(offsets, data, i, offsets, data, i + 1)


@_kernel(types.int64(_U64, _U64, types.uint64, _OUT_U8))
def visible(ins: Any, ends: Any, at: Any, out: Any) -> Any:
    """Mark the versions that are visible at a time; return how many."""
    count = 0
    for i in range(len(out)):
        seen = (ins[i] <= at) & (ends[i] - _U(1) >= at)
        out[i] = seen
        count += seen
    return count


@njit(types.int64(_CODES, types.int64, types.int64), nogil=True, cache=True, inline="always")
def _clash(codes: Any, i: Any, j: Any) -> Any:
    """Return the first column in which two values differ, or -1."""
    for c in range(codes.shape[0]):
        if codes[c, i] != codes[c, j]:
            return c
    return -1


@_kernel(
    types.void(
        _U8, _U8, _I64, _CODES, types.boolean, _OUT_U8, _OUT_I32, _OUT_U8, _OUT_U8, _OUT_U8, _OUT_I64
    )
)  # fmt: skip
def decide(
    ops: Any, bad: Any, numbers: Any, codes: Any, no_create: Any,
    errors: Any, columns: Any, alive: Any, ended: Any, kept: Any, source: Any,
) -> None:  # fmt: skip
    """Run a batch's row operations in order; what remains of each key is its final state.

    Args:
        ops: op code of each row.
        bad: an error that the row has whatever it meets, or 0.
        numbers: key number of each row (-1: has no key; then `bad` is set).
        codes: per immutable column, equal codes for equal values: of row i at i, of the version that was
            live before the batch of key g at rows + g.
        no_create: a new row would lack a column that has to have a value.
        errors: out: outcome of each row, 0 for none.
        columns: out: which immutable column a row with outcome IMMUTABLE would change.
        alive: in and out, per key: it has a live version.
        ended: out, per key: the version that was live before the batch has ended.
        kept: in and out, per key: columns that the batch does not give come from that version.
        source: out, per key: the row that gives the columns of its new version, or -1.
    """
    rows = len(ops)
    values = np.empty(len(alive), np.int64)  # column of `codes` that holds the key's values now
    for g in range(len(alive)):
        values[g] = rows + g
        source[g] = -1
    for i in range(rows):
        errors[i] = bad[i]
        if bad[i] != 0:
            continue
        op = ops[i]
        g = numbers[i]
        ignore = op % 2 == 0
        kind = (op - 1) // 2  # 0 insert, 1 upsert, 2 update, 3 delete
        if alive[g] != 0:
            if kind == 0:
                if not ignore:
                    errors[i] = ALREADY_PRESENT
            elif kind == 3:
                alive[g] = 0
                ended[g] = 1
                source[g] = -1
            else:
                clash = _clash(codes, i, values[g])
                if clash < 0:
                    ended[g] = 1
                    source[g] = i
                elif not ignore:
                    errors[i] = IMMUTABLE
                    columns[i] = clash
        elif kind == 2 or kind == 3:
            if not ignore:
                errors[i] = NOT_FOUND
        elif no_create:
            errors[i] = NULL_VALUE
        else:
            alive[g] = 1
            kept[g] = 0
            source[g] = i
            values[g] = i


def warm() -> int:
    """Make sure that every kernel is compiled and in numba's cache; return how many there are.

    Importing this module did the work: the launcher calls this once before it starts many processes.
    """
    from nyala.common.hashing import kernels

    kernels()
    return sum(1 for value in globals().values() if hasattr(value, "py_func"))
