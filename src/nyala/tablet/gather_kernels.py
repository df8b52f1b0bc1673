"""Numba kernels that gather values of one column from many arrays by address, in one call.

Rules as in kernels.py: explicit signatures, compiled or read from numba's cache at import, GIL released.
Callers keep the arrays alive, and vouch for rows within them and for offsets within their data.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_OUT_U8 = types.Array(types.uint8, 1, "C")
_OUT_I32 = types.Array(types.int32, 1, "C")
MAX_BYTES = (1 << 31) - 1
"""Of the strings of one array."""


def _pointer_to(element: Any) -> Any:
    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


_u8_at, _u16_at, _i32_at, _u64_at = (
    _pointer_to(t) for t in (types.uint8, types.uint16, types.int32, types.uint64)
)


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
            eights[i] = _u64_at(values[arrays[i]])[rows[i]]
    elif width == 4:
        fours = out.view(np.int32)
        for i in range(len(rows)):
            fours[i] = _i32_at(values[arrays[i]])[rows[i]]
    elif width == 16:
        halves = out.view(np.uint64)
        for i in range(len(rows)):
            at = _u64_at(values[arrays[i]])
            halves[2 * i] = at[2 * rows[i]]
            halves[2 * i + 1] = at[2 * rows[i] + 1]
    elif width == 2:
        twos = out.view(np.uint16)
        for i in range(len(rows)):
            twos[i] = _u16_at(values[arrays[i]])[rows[i]]
    else:
        for i in range(len(rows)):
            out[i] = _u8_at(values[arrays[i]])[rows[i]]


@_kernel(types.int64(_I64, _I64, _I64, _I64, _OUT_U8))
def bits(bitmaps: Any, starts: Any, arrays: Any, rows: Any, out: Any) -> Any:
    """Write bit starts[a] + rows[i] of array a's bitmap to bit i of out, zeroed; return how many are 0.

    An array without a bitmap (address 0) has every bit set.
    """
    zeros = 0
    for i in range(len(rows)):
        array = arrays[i]
        bitmap = bitmaps[array]
        at = starts[array] + rows[i]
        if bitmap == 0 or (_u8_at(bitmap)[at >> 3] >> (at & 7)) & 1:
            out[i >> 3] |= 1 << (i & 7)
        else:
            zeros += 1
    return zeros


@_kernel(types.boolean(_I64, _I64, _I64, _OUT_I32))
def lengths(offsets: Any, arrays: Any, rows: Any, out: Any) -> Any:
    """Write the offsets of the strings rows[i] of array arrays[i]; return whether they fit 31 bits.

    `offsets` are the addresses of the arrays' first offsets.
    """
    total = 0
    out[0] = 0
    for i in range(len(rows)):
        at = _i32_at(offsets[arrays[i]])
        total += types.int64(at[rows[i] + 1]) - types.int64(at[rows[i]])
        if total > MAX_BYTES:
            return False
        out[i + 1] = total
    return True


@_kernel(types.void(_I64, _I64, _I64, _I64, _OUT_I32, _OUT_U8))
def strings(offsets: Any, data: Any, arrays: Any, rows: Any, ends: Any, out: Any) -> None:
    """Write the bytes of the strings whose offsets `lengths` made to `out`."""
    target = out.ctypes.data
    for i in range(len(rows)):
        array = arrays[i]
        begin = _i32_at(offsets[array])[rows[i]]
        source = data[array] + begin
        to = target + ends[i]
        size = ends[i + 1] - ends[i]
        words = size >> 3
        for k in range(words):
            _u64_at(to)[k] = _u64_at(source)[k]
        for k in range(words << 3, size):
            _u8_at(to)[k] = _u8_at(source)[k]
