"""The kernel that runs row operations in order, of one write or of several: what becomes of each key.

Rules as in kernels.py. A version that would live for no time is never made; versions of one key that begin at
several stamps, as several writes in one run make them, are chained.
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
def _clash(codes: Any, i: Any, j: Any) -> Any:
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
    """Run row operations in order; return how many versions they make.

    Args:
        ops: op code of each row.
        bad: an error that the row has whatever it meets, or 0.
        numbers: key number of each row (-1: has no key; then `bad` is set).
        writes: number of the write that each row belongs to, ascending.
        codes: per immutable column, equal codes for equal values: of row i at i, of the version that was
            live before of key g at rows + g.
        no_create: a new row would lack a column that has to have a value.
        errors: out: outcome of each row, 0 for none.
        columns: out: which immutable column a row with outcome IMMUTABLE would change.
        alive: in and out, per key: it has a live version.
        ended: out, per key: the write that ended the version which was live before, or -1.
        made: out, 6 × rows: the new versions, in columns; see `KEY`.
    """
    rows = len(ops)
    keys = len(alive)
    values = np.empty(keys, np.int64)  # column of `codes` that holds the key's values now
    last = np.empty(keys, np.int64)  # newest version made of the key, or -1
    kept = np.empty(keys, np.uint8)
    for g in range(keys):
        values[g] = rows + g
        last[g] = -1
        kept[g] = alive[g]
        ended[g] = -1
    count = 0
    for i in range(rows):
        errors[i] = bad[i]
        if bad[i] != 0:
            continue
        op = ops[i]
        g = numbers[i]
        write = writes[i]
        now = last[g]
        ignore = op % 2 == 0
        kind = (op - 1) // 2  # 0 insert, 1 upsert, 2 update, 3 delete
        if alive[g] != 0:
            if kind == 0:
                if not ignore:
                    errors[i] = ALREADY_PRESENT
                continue
            if kind != 3:
                clash = _clash(codes, i, values[g])
                if clash >= 0:
                    if not ignore:
                        errors[i] = IMMUTABLE
                        columns[i] = clash
                    continue
            fresh = now >= 0 and made[BEGAN, now] == write  # begun by this same write
            if kind == 3:
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
            if kind == 3:
                continue
        elif kind == 2 or kind == 3:
            if not ignore:
                errors[i] = NOT_FOUND
            continue
        elif no_create:
            errors[i] = NULL_VALUE
            continue
        else:
            alive[g] = 1
            kept[g] = 0
            values[g] = i
        made[KEY, count] = g
        made[SOURCE, count] = i
        made[BEGAN, count] = write
        made[ENDED, count] = -1
        made[OLDER, count] = now
        made[KEPT, count] = kept[g]
        last[g] = count
        count += 1
    return _close_gaps(made, count)
