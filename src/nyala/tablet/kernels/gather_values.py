"""Numba kernels that gather values of one column from many arrays by address, in one call.

Rules as in common/kernels: explicit signatures, compiled or cached at import, without the GIL.
Callers keep the arrays alive, and guarantee rows within them and offsets within their data.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types

from nyala.tablet.kernels.key_bytes import i32_at, prefetch, u8_at, u16_at, u64_at

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT_U8 = types.Array(types.uint8, 1, "C")
_OUT_I32 = types.Array(types.int32, 1, "C")
_OUT_I64 = types.Array(types.int64, 1, "C")
_AHEAD = 12
"""Prefetch distance in strings."""
MAX_BYTES = (1 << 31) - 1
"""Of the strings of one array."""


def _kernel(signature: Any) -> Any:
    return njit(signature, nogil=True, cache=True)


@_kernel(types.void(_I64, _I64, _I64, types.int64, _OUT_U8))
def fixed(values: Any, arrays: Any, rows: Any, width: Any, out: Any) -> None:
    """Write value rows[i] of array arrays[i] to out, for each i.

    Args:
        values: address of the first value of each array.
        arrays: number of the array of each row.
        rows: position in it.
        width: bytes of a value: 1, 2, 4, 8 or 16.
        out: as many values.
    """
    if width == 8:
        eights = out.view(np.uint64)
        for i in range(len(rows)):
            eights[i] = u64_at(values[arrays[i]])[rows[i]]
    elif width == 4:
        fours = out.view(np.int32)
        for i in range(len(rows)):
            fours[i] = i32_at(values[arrays[i]])[rows[i]]
    elif width == 16:
        halves = out.view(np.uint64)
        for i in range(len(rows)):
            at = u64_at(values[arrays[i]])
            halves[2 * i] = at[2 * rows[i]]
            halves[2 * i + 1] = at[2 * rows[i] + 1]
    elif width == 2:
        twos = out.view(np.uint16)
        for i in range(len(rows)):
            twos[i] = u16_at(values[arrays[i]])[rows[i]]
    else:
        for i in range(len(rows)):
            out[i] = u8_at(values[arrays[i]])[rows[i]]


@_kernel(types.int64(_I64, _I64, _I64, _I64, _OUT_U8))
def bits(bitmaps: Any, starts: Any, arrays: Any, rows: Any, out: Any) -> Any:
    """Write bit starts[a] + rows[i] of array a's bitmap to bit i of out, zeroed; return how many are 0.

    An array without a bitmap (address 0) has every bit set.

    Args:
        bitmaps: addresses of the validity bitmaps.
        starts: first bit of each array in its bitmap.
        arrays: index of the array of each row.
        rows: position in its array of each value.
        out: written to.
    """
    zeros = 0
    for i in range(len(rows)):
        array = arrays[i]
        bitmap = bitmaps[array]
        at = starts[array] + rows[i]
        if bitmap == 0 or (u8_at(bitmap)[at >> 3] >> (at & 7)) & 1:
            out[i >> 3] |= 1 << (i & 7)
        else:
            zeros += 1
    return zeros


@_kernel(types.boolean(_I64, _I64, _I64, _I64, _OUT_I32, _OUT_I64))
def lengths(offsets: Any, data: Any, arrays: Any, rows: Any, out: Any, places: Any) -> Any:
    """Write the offsets of the strings rows[i] of array arrays[i]; return whether they fit 31 bits.

    `offsets` are the addresses of the arrays' first offsets, `data` of their bytes; the address of each
    string is written to `places`.

    Args:
        offsets: address of the first offset of each array.
        data: address of the bytes of each array.
        arrays: index of the array of each row.
        rows: position in its array of each string.
        out: int32 offsets; written to.
        places: address of each string; written to.
    """
    total = 0
    out[0] = 0
    for i in range(len(rows)):
        at = i32_at(offsets[arrays[i]])
        begin = types.int64(at[rows[i]])
        total += types.int64(at[rows[i] + 1]) - begin
        places[i] = data[arrays[i]] + begin
        if total > MAX_BYTES:
            return False
        out[i + 1] = total
    return True


@_kernel(types.void(_I64, _OUT_I32, _OUT_U8))
def strings(places: Any, ends: Any, out: Any) -> None:
    """Write the bytes of the strings that `lengths` found to `out`.

    Args:
        places: address of each string.
        ends: int32 offsets in `out`.
        out: written to.
    """
    target = out.ctypes.data
    for i in range(len(places)):
        if i + _AHEAD < len(places):
            prefetch(places[i + _AHEAD])
        source = places[i]
        to = target + ends[i]
        size = ends[i + 1] - ends[i]
        words = size >> 3
        for k in range(words):
            u64_at(to)[k] = u64_at(source)[k]
        for k in range(words << 3, size):
            u8_at(to)[k] = u8_at(source)[k]


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64),
    nogil=True,
    cache=True,
    inline="always",
)
def before(at: Any, size: Any, other: Any, other_size: Any) -> Any:
    """Return whether bytes at an address order before others.

    Args:
        at: address of the bytes.
        size: length in bytes.
        other: address of the other bytes.
        other_size: length of the other bytes.
    """
    shared = min(size, other_size)
    k = 0
    while k + 8 <= shared and u64_at(at + k)[0] == u64_at(other + k)[0]:
        k += 8
    while k < shared and u8_at(at)[k] == u8_at(other)[k]:
        k += 1
    return u8_at(at)[k] < u8_at(other)[k] if k < shared else size < other_size


@_kernel(types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64))
def extremes(offsets: Any, data: Any, rows: Any) -> Any:
    """Return where the least and the greatest of some strings are; one at least, none is null.

    `offsets` is the address of the first one's offset, `data` of the bytes.

    Args:
        offsets: address of the first offset.
        data: address of the bytes.
        rows: number of strings.
    """
    ends = i32_at(offsets)
    least = greatest = types.int64(0)
    for i in range(1, rows):
        at, size = data + ends[i], types.int64(ends[i + 1] - ends[i])
        other, other_size = data + ends[least], types.int64(ends[least + 1] - ends[least])
        if before(at, size, other, other_size):
            least = i
            continue
        other, other_size = data + ends[greatest], types.int64(ends[greatest + 1] - ends[greatest])
        if before(other, other_size, at, size):
            greatest = i
    return least, greatest


@_kernel(types.int64(types.int64, types.int64))
def longest(offsets: Any, rows: Any) -> Any:
    """Return the size of the longest of some strings; `offsets` is the address of the first one's."""
    ends = i32_at(offsets)
    size = types.int64(0)
    for i in range(rows):
        size = max(size, types.int64(ends[i + 1] - ends[i]))
    return size
