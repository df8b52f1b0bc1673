"""Numba kernels that sort a rowset's rows by (key, ins) and mark rows whose key is also the next row's.

numpy sorts words of eight bytes several times faster than byte strings can be sorted. Runs of keys with equal
words are sorted here.

Rules as in common/kernels.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from numba import njit, types

from nyala.tablet.kernels.key_bytes import prefetch, same, u8_at, u64_at

_I64 = types.Array(types.int64, 1, "C", readonly=True)
_U64 = types.Array(types.uint64, 1, "C", readonly=True)
_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_U64 = types.Array(types.uint64, 1, "C")
_OUT_U8 = types.Array(types.uint8, 1, "C")
_AHEAD = 12
"""Prefetch distance in keys."""


@njit(types.void(_U64, _U64, _OUT_I64), nogil=True, cache=True)
def sort_ties(words: Any, ins: Any, order: Any) -> None:
    """Bring the rows of equal words in `order`, which sorts the words, in order of `ins`.

    Args:
        words: sort key of each row.
        ins: hybrid time at which each version begins.
        order: row numbers; sorted in place.
    """
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
    """Mark each row whose key is also the next row's.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        out: written to.
    """
    width = offsets[0] if len(offsets) == 1 else types.int64(0)
    layout, bytes_at = offsets.ctypes.data, data.ctypes.data
    for i in range(len(out)):
        out[i] = i + 1 < len(out) and same(width, layout, bytes_at, i, layout, bytes_at, i + 1)


@njit(types.uint64(types.int64, types.int64), nogil=True, cache=True, inline="always")
def _word(at: Any, size: Any) -> Any:
    """Return eight bytes at an address as a number that sorts as they do; zeros are beyond `size`."""
    word = np.uint64(0)
    for k in range(8):
        word <<= np.uint64(8)
        if k < size:
            word |= np.uint64(u8_at(at)[k])
    return word


@njit(types.int64(types.int64, types.int64, types.int64, types.int64), nogil=True, cache=True)
def _compare(at: Any, size: Any, other: Any, other_size: Any) -> Any:
    """Return a number below, at or above 0: bytes at an address are less, equal or greater."""
    for k in range(min(size, other_size)):
        if u8_at(at)[k] != u8_at(other)[k]:
            return types.int64(u8_at(at)[k]) - types.int64(u8_at(other)[k])
    return size - other_size


@njit(types.int64(_I64, _U8, _U64), nogil=True, cache=True)
def common_prefix(offsets: Any, data: Any, ins: Any) -> Any:
    """Return how many bytes all keys begin with; -1 if they are in order of (key, ins) already.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        ins: hybrid time at which each version begins.
    """
    at = data.ctypes.data
    shared = offsets[1] - offsets[0]
    ordered = True
    for i in range(1, len(ins)):
        size, before = offsets[i + 1] - offsets[i], offsets[i] - offsets[i - 1]
        k = types.int64(0)
        while k < shared and k < size and data[offsets[i] + k] == data[k]:
            k += 1
        shared = k
        if ordered:
            said = _compare(at + offsets[i - 1], before, at + offsets[i], size)
            ordered = said < 0 or (said == 0 and ins[i - 1] <= ins[i])
        elif shared == 0:
            break
    return types.int64(-1) if ordered else shared


@njit(types.void(_I64, _U8, types.int64, _OUT_U64), nogil=True, cache=True)
def words_at(offsets: Any, data: Any, depth: Any, out: Any) -> None:
    """Write the eight bytes of each key from `depth` on as a number that sorts as they do.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        depth: bytes already compared.
        out: written to.
    """
    at = data.ctypes.data
    for i in range(len(out)):
        out[i] = _word(at + offsets[i] + depth, offsets[i + 1] - offsets[i] - depth)


@njit(types.int64(_I64, _U8, _OUT_I64), nogil=True, cache=True)
def varying(offsets: Any, data: Any, out: Any) -> Any:
    """Write the positions, eight at most, at which keys of one length are not all alike; return how many.

    -1: there are more, or keys of several lengths.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        out: byte positions; written to.
    """
    size = offsets[1] - offsets[0]
    for i in range(1, len(offsets) - 1):
        if offsets[i + 1] - offsets[i] != size:
            return types.int64(-1)
    first = data.ctypes.data + offsets[0]
    count = types.int64(0)
    for begin in range(0, size, 8):
        width = min(types.int64(8), size - begin)
        differ = np.uint64(0)
        for i in range(1, len(offsets) - 1):
            at = first + i * size + begin
            if width == 8:
                differ |= u64_at(at)[0] ^ u64_at(first + begin)[0]
            else:
                for k in range(width):
                    wrong = u8_at(at)[k] ^ u8_at(first + begin)[k]
                    differ |= np.uint64(wrong) << np.uint64(8 * k)
        for k in range(width):
            if (differ >> np.uint64(8 * k)) & np.uint64(255) != np.uint64(0):
                if count == len(out):
                    return types.int64(-1)
                out[count] = begin + k
                count += 1
    return count


@njit(types.void(_I64, _U8, _I64, _OUT_U64), nogil=True, cache=True)
def pack(offsets: Any, data: Any, positions: Any, out: Any) -> None:
    """Write the bytes of each key at some positions as a number that sorts as they do.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        positions: byte positions within a key.
        out: written to.
    """
    at = data.ctypes.data
    for i in range(len(out)):
        word = np.uint64(0)
        for k in range(len(positions)):
            word = word << np.uint64(8) | np.uint64(u8_at(at + offsets[i])[positions[k]])
        out[i] = word


@njit(types.void(_I64, _U8, _I64, _I64, _OUT_U8), nogil=True, cache=True)
def take_keys(offsets: Any, data: Any, rows: Any, ends: Any, out: Any) -> None:
    """Write the keys of some rows to `out`, key i before `ends[i + 1]`.

    Args:
        offsets: int32 offsets of the strings.
        data: bytes of the strings.
        rows: row numbers, in the order wanted.
        ends: int64 offsets in `out`.
        out: written to.
    """
    base, target = data.ctypes.data, out.ctypes.data
    for i in range(len(rows)):
        if i + _AHEAD < len(rows):
            prefetch(base + offsets[rows[i + _AHEAD]])
        source, to, size = base + offsets[rows[i]], target + ends[i], ends[i + 1] - ends[i]
        words = size >> 3
        for k in range(words):
            u64_at(to)[k] = u64_at(source)[k]
        for k in range(words << 3, size):
            u8_at(to)[k] = u8_at(source)[k]


@njit(
    types.void(_I64, _U8, _U64, types.int64, types.int64, types.int64, _OUT_I64),
    nogil=True,
    cache=True,
)
def _sort_by_all(
    offsets: Any, data: Any, ins: Any, depth: Any, begin: Any, end: Any, order: Any
) -> None:
    """Sort a run of rows, whose keys begin with the same `depth` bytes, by (key, ins)."""
    at = data.ctypes.data
    gap = types.int64(1)
    while gap < (end - begin) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(begin + gap, end):
            row = order[i]
            suffix, size = at + offsets[row] + depth, offsets[row + 1] - offsets[row] - depth
            j = i
            while j >= begin + gap:
                other = order[j - gap]
                said = _compare(
                    at + offsets[other] + depth,
                    offsets[other + 1] - offsets[other] - depth,
                    suffix,
                    size,
                )
                if said < 0 or (said == 0 and ins[other] <= ins[row]):
                    break
                order[j] = other
                j -= gap
            order[j] = row
        gap //= 3


@njit(types.void(types.int64, types.int64, _OUT_U64, _OUT_I64), nogil=True, cache=True)
def _sort_by_word(begin: Any, end: Any, words: Any, order: Any) -> None:
    """Sort a run of rows by their words, which go with them."""
    gap = types.int64(1)
    while gap < (end - begin) // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(begin + gap, end):
            word, row = words[i], order[i]
            j = i
            while j >= begin + gap and words[j - gap] > word:
                words[j], order[j] = words[j - gap], order[j - gap]
                j -= gap
            words[j], order[j] = word, row
        gap //= 3


_FEW = 16
"""Rows that are compared whole at once."""


@njit(types.void(_I64, _U8, _U64, types.int64, _OUT_U64, _OUT_I64), nogil=True, cache=True)
def sort_runs(offsets: Any, data: Any, ins: Any, depth: Any, words: Any, order: Any) -> None:
    """Bring rows in order of (key, ins).

    Args:
        offsets: offsets of the keys.
        data: bytes of the keys.
        ins: insert timestamps of the rows.
        depth: bytes that all keys begin with.
        words: words of the keys from there on (`words_at`), in the order of `order`; is overwritten.
        order: sorts the words.
    """
    at = data.ctypes.data
    waiting = np.empty((len(order) // 2 + 2, 3), np.int64)  # runs: begin, end, bytes in common
    waiting[0] = 0, len(order), depth
    count = 1
    while count > 0:
        count -= 1
        first, last, shared = waiting[count]
        if shared > depth:  # else the words are there, and sorted
            for i in range(first, last):
                row = order[i]
                place = offsets[row] + shared
                words[i] = _word(at + place, offsets[row + 1] - place)
            _sort_by_word(first, last, words, order)
        begin = first
        while begin < last:
            end = begin + 1
            shortest = offsets[order[begin] + 1] - offsets[order[begin]]
            while end < last and words[end] == words[begin]:
                shortest = min(shortest, offsets[order[end] + 1] - offsets[order[end]])
                end += 1
            if end - begin > 1:
                if end - begin <= _FEW or shortest <= shared + 8:
                    _sort_by_all(offsets, data, ins, shared, begin, end, order)
                else:
                    waiting[count] = begin, end, shared + 8
                    count += 1
            begin = end
