"""Kernel that executes row operations in order, of one write or of several, and decides the outcome of each.

Rules as in common/kernels. A version that would begin and end at the same stamp is never created. Versions
of one key that begin at different stamps, as several writes in one run create them, are chained.

`decide` takes
- ops: op code of each row;
- bad: an error of the row that does not depend on existing rows, or 0;
- numbers: key number of each row (-1: has no key; then `bad` is set);
- writes: number of the write that each row belongs to, ascending;
- codes: per immutable column, equal codes for equal values: of row i at i, of the version of key g that was
  live before at rows + g;
- no_create: a new row would lack a column that requires a value;
- errors: out: outcome of each row, 0 for none;
- columns: out: which immutable column a row with outcome IMMUTABLE would change;
- alive: in and out, per key: it has a live version;
- ended: out, per key: the write that ended the version which was live before, or -1;
- made: out, 6 x rows: the new versions, in columns; see `KEY`.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_CODES = types.Array(types.int32, 2, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_I32 = types.Array(types.int32, 1, "C")
_OUT_U8 = types.Array(types.uint8, 1, "C")

# Outcomes of a row, as `apply.py` names them. 0 is none.
ALREADY_PRESENT, NOT_FOUND, NULL_KEY, NULL_VALUE, IMMUTABLE, TOO_LARGE, OUT_OF_RANGE = range(1, 8)

KEY, SOURCE, BEGAN, ENDED, OLDER, KEPT = range(6)
"""Of a version, rows of `decide`'s `made`: its key's number; the row that gives its columns; the writes that
began and ended it (-1: none); the version in `made` that it follows, or -1; whether columns that the batch
does not give come from the version that was live before (1) or are defaults (0)."""


@njit(types.int64(_CODES, types.int64, types.int64), nogil=True, cache=True, inline="always")
def _first_difference(codes: Any, i: Any, j: Any) -> Any:
    """Return the first column in which two values differ, or -1."""
    for c in range(codes.shape[0]):
        if codes[c, i] != codes[c, j]:
            return c
    return -1


@njit(types.int64(types.Array(types.int64, 2, "C"), types.int64), nogil=True, cache=True)
def _close_gaps(made: Any, count: Any) -> Any:
    """Leave out the versions that were taken back (source -1); return how many are left."""
    place = np.empty(count, np.int64)
    left = 0
    for v in range(count):
        place[v] = left
        if made[SOURCE, v] < 0:
            continue
        if left < v:
            for field in range(6):
                made[field, left] = made[field, v]
        if made[OLDER, left] >= 0:
            made[OLDER, left] = place[made[OLDER, left]]
        left += 1
    return left


_CREATE, _MODIFY, _REMOVE = -1, -2, -3


@njit(
    types.int64(types.int64, types.boolean, types.boolean, types.int64, types.boolean),
    nogil=True,
    cache=True,
    inline="always",
)
def _effect_of(kind: Any, ignore: Any, alive: Any, clash: Any, no_create: Any) -> Any:
    """Return what one row does: `_CREATE`, `_MODIFY` or `_REMOVE`; or nothing, with an error or 0."""
    if alive:
        if kind == 0:
            return 0 if ignore else ALREADY_PRESENT
        if kind == 3:
            return _REMOVE
        if clash >= 0:
            return 0 if ignore else IMMUTABLE
        return _MODIFY
    if kind >= 2:
        return 0 if ignore else NOT_FOUND
    return NULL_VALUE if no_create else _CREATE


@njit(
    types.int64(
        _U8, _U8, _I64, _I64, _CODES, types.boolean, _OUT_U8, _OUT_I32, _OUT_U8, _OUT_I64,
        types.Array(types.int64, 2, "C"),
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def decide(
    ops: Any, bad: Any, numbers: Any, writes: Any, codes: Any, no_create: Any,
    errors: Any, columns: Any, alive: Any, ended: Any, made: Any,
) -> Any:  # fmt: skip
    """Execute row operations in order; return the number of new versions.

    Args:
        ops: op code of each row.
        bad: error of each row that does not depend on existing rows, or 0.
        numbers: key number of each row; -1: no key.
        writes: write of each row, ascending.
        codes: codes of the immutable columns, columns × (rows + keys).
        no_create: a new row would lack a column that needs a value.
        errors: outcome of each row, 0 or an error; written to.
        columns: column of each outcome IMMUTABLE; written to.
        alive: whether each key has a live version; updated.
        ended: write that ends each key's live version, or -1; written to.
        made: new versions, 6 × rows; written to.
    """
    rows, keys = len(ops), len(alive)
    values = np.arange(rows, rows + keys)  # column of `codes` that holds the key's values now
    last = np.full(keys, -1, np.int64)  # newest version made of the key
    kept = alive.copy()
    ended[:] = -1
    count = 0
    for i in range(rows):
        errors[i] = bad[i]
        if bad[i] != 0:
            continue
        g, write = numbers[i], writes[i]
        kind = (ops[i] - 1) // 2  # 0 insert, 1 upsert, 2 update, 3 delete
        clash = types.int64(-1)
        if alive[g] != 0 and (kind == 1 or kind == 2):
            clash = _first_difference(codes, i, values[g])
        effect = _effect_of(kind, ops[i] % 2 == 0, alive[g] != 0, clash, no_create)
        if effect >= 0:
            errors[i] = effect
            columns[i] = clash
            continue
        now = last[g]
        if effect == _CREATE:
            alive[g] = 1
            kept[g] = 0
            values[g] = i
        else:
            fresh = now >= 0 and made[BEGAN, now] == write  # begun by this same write
            if effect == _REMOVE:
                alive[g] = 0
                if fresh:
                    made[SOURCE, now] = -1
                    last[g] = made[OLDER, now]
            elif fresh:
                made[SOURCE, now] = i
            if fresh:
                continue
            if now >= 0:
                made[ENDED, now] = write
            else:
                ended[g] = write
            if effect == _REMOVE:
                continue
        made[KEY, count], made[SOURCE, count], made[BEGAN, count] = g, i, write
        made[ENDED, count], made[OLDER, count], made[KEPT, count] = -1, now, kept[g]
        last[g] = count
        count += 1
    return _close_gaps(made, count)
