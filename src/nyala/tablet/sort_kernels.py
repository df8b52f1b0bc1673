"""Numba kernels for writing a rowset in order: ties of equal keys, and where a key goes on in the next row.

Rules as in kernels.py.
"""

# mypy: allow-untyped-decorators

from typing import Any

from numba import njit, types

from nyala.tablet.kernels import same

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_U8 = types.Array(types.uint8, 1, "C")


@njit(types.void(_U64, _U64, _OUT_I64), nogil=True, cache=True)
def sort_ties(words: Any, ins: Any, order: Any) -> None:
    """Bring the rows of equal words in `order`, which sorts the words, in order of `ins`."""
    begin = 0
    while begin < len(order):
        word = words[order[begin]]
        end = begin + 1
        while end < len(order) and words[order[end]] == word:
            end += 1
        gap = 1
        while gap < (end - begin) // 3:
            gap = 3 * gap + 1
        while gap > 0 and end - begin > 1:
            for i in range(begin + gap, end):
                row = order[i]
                j = i
                while j >= begin + gap and ins[order[j - gap]] > ins[row]:
                    order[j] = order[j - gap]
                    j -= gap
                order[j] = row
            gap //= 3
        begin = end


@njit(types.void(_I64, _U8, _OUT_U8), nogil=True, cache=True)
def same_as_next(offsets: Any, data: Any, out: Any) -> None:
    """Mark each row whose key is also the next row's."""
    for i in range(len(out)):
        out[i] = i + 1 < len(out) and same(offsets, data, i, offsets, data, i + 1)
