"""Numba kernels for key bytes: hashing, and the variable-length parts of the key encoding.

Loaded only through `hashing.kernels()`, so that `import nyala` does not load numba. Each kernel has one
explicit signature: it is compiled (or read from numba's cache) when this module is imported, takes read-only
arrays and releases the GIL. Callers guarantee ascending offsets within their data; the bytes themselves
(`take_*`) are checked here. docs/internals/keys-and-hashes.md specifies the bytes.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numba import njit, types

_F = TypeVar("_F", bound=Callable[..., Any])
_U = np.uint64
_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_OFFSETS = types.Array(types.int64, 1, "C", readonly=True)
_MATRIX = types.Array(types.uint8, 2, "C", readonly=True)
_OUT = types.Array(types.uint8, 1, "C")
_OUT_MATRIX = types.Array(types.uint8, 2, "C")
_CURSOR = types.Array(types.int64, 1, "C")


def _kernel(signature: Any, inline: str = "never") -> Callable[[_F], _F]:
    made: Callable[[_F], _F] = njit(signature, nogil=True, cache=True, inline=inline)
    return made


@_kernel(types.uint64(types.uint64), inline="always")
def _mix(h: Any) -> Any:
    h ^= h >> _U(33)
    h *= _U(0xFF51AFD7ED558CCD)
    h ^= h >> _U(33)
    h *= _U(0xC4CEB9FE1A85EC53)
    return h ^ (h >> _U(33))


@_kernel(types.uint64(types.uint64, types.uint64), inline="always")
def _absorb(h: Any, word: Any) -> Any:
    word *= _U(0x87C37B91114253D5)
    word = (word << _U(31)) | (word >> _U(33))
    h ^= word * _U(0x4CF5AD432745937F)
    h = (h << _U(27)) | (h >> _U(37))
    return h * _U(5) + _U(0x52DCE729)


@_kernel(types.void(_OFFSETS, _BYTES, types.uint64, types.Array(types.uint64, 1, "C")))
def hash_rows(offsets: Any, data: Any, seed: Any, out: Any) -> None:
    """Write nyala hash v1 of each row's bytes to `out`.

    Args:
        offsets: int64 offsets of the rows' bytes.
        data: bytes of the rows.
        seed: seed of the hash.
        out: written to.
    """
    for i in range(len(out)):
        at = _U(offsets[i])
        end = _U(offsets[i + 1])
        h = _mix(seed ^ ((end - at + _U(1)) * _U(0x9E3779B97F4A7C15)))
        while at + _U(8) <= end:
            word = _U(data[at])
            word |= _U(data[at + _U(1)]) << _U(8)
            word |= _U(data[at + _U(2)]) << _U(16)
            word |= _U(data[at + _U(3)]) << _U(24)
            word |= _U(data[at + _U(4)]) << _U(32)
            word |= _U(data[at + _U(5)]) << _U(40)
            word |= _U(data[at + _U(6)]) << _U(48)
            word |= _U(data[at + _U(7)]) << _U(56)
            h = _absorb(h, word)
            at += _U(8)
        if at < end:
            word = _U(0)
            shift = _U(0)
            while at < end:
                word |= _U(data[at]) << shift
                shift += _U(8)
                at += _U(1)
            h = _absorb(h, word)
        out[i] = _mix(h)


@_kernel(types.void(_OFFSETS, _BYTES, _CURSOR))
def add_escaped_lengths(offsets: Any, data: Any, lengths: Any) -> None:
    """Add to `lengths` the escaped size of each row with its terminator.

    Args:
        offsets: int64 offsets of the rows' bytes.
        data: bytes of the rows.
        lengths: int64, one per row; added to.
    """
    for i in range(len(lengths)):
        size = offsets[i + 1] - offsets[i] + 2
        for at in range(offsets[i], offsets[i + 1]):
            if data[at] == 0:
                size += 1
        lengths[i] += size


@_kernel(types.void(_MATRIX, _CURSOR, _OUT))
def put_fixed(matrix: Any, cursor: Any, out: Any) -> None:
    """Write one fixed-width component of each row at its cursor and advance it.

    Args:
        matrix: uint8, rows × width.
        cursor: position of each row; advanced.
        out: written to.
    """
    width = matrix.shape[1]
    for i in range(len(cursor)):
        at = cursor[i]
        for k in range(width):
            out[at + k] = matrix[i, k]
        cursor[i] = at + width


@_kernel(types.void(_OFFSETS, _BYTES, _CURSOR, _OUT, types.boolean))
def put_bytes(offsets: Any, data: Any, cursor: Any, out: Any, final: Any) -> None:
    """Write one string component of each row: raw if final, else 00 escaped as 00 01, terminated by 00 00.

    Args:
        offsets: int64 offsets of the rows' bytes.
        data: bytes of the rows.
        cursor: position of each row; advanced.
        out: written to.
        final: the component is the last one, stored unescaped.
    """
    for i in range(len(cursor)):
        to = cursor[i]
        for at in range(offsets[i], offsets[i + 1]):
            out[to] = data[at]
            to += 1
            if data[at] == 0 and not final:
                out[to] = 1
                to += 1
        if not final:
            out[to] = 0
            out[to + 1] = 0
            to += 2
        cursor[i] = to


@_kernel(types.int64(_BYTES, _CURSOR, _OFFSETS, _OUT_MATRIX))
def take_fixed(data: Any, cursor: Any, ends: Any, out: Any) -> Any:
    """Read one fixed-width component of each row; return the first row that is too short, or -1.

    Args:
        data: bytes of the rows.
        cursor: position in `data` of each row; advanced.
        ends: end of each row in `data`.
        out: uint8, rows × width; written to.
    """
    width = out.shape[1]
    for i in range(len(cursor)):
        at = cursor[i]
        if at + width > ends[i]:
            return i
        for k in range(width):
            out[i, k] = data[at + k]
        cursor[i] = at + width
    return -1


@_kernel(types.int64(_BYTES, _CURSOR, _OFFSETS, _CURSOR, _OUT))
def take_escaped(data: Any, cursor: Any, ends: Any, offsets: Any, out: Any) -> Any:
    """Read one escaped component of each row into `out`; return the first malformed row, or -1.

    Args:
        data: bytes of the rows.
        cursor: position of each row; advanced.
        ends: end of each row in `data`.
        offsets: offsets of the components in `out`; written to.
        out: written to.
    """
    to = 0
    for i in range(len(cursor)):
        at = cursor[i]
        end = ends[i]
        ended = False
        while at < end:
            byte = data[at]
            if byte == 0:
                if at + 1 >= end:
                    return i
                following = data[at + 1]
                at += 2
                if following == 0:
                    ended = True
                    break
                if following != 1:
                    return i
            else:
                at += 1
            out[to] = byte
            to += 1
        if not ended:
            return i
        offsets[i + 1] = to
        cursor[i] = at
    return -1


@_kernel(types.void(_BYTES, _OFFSETS, _OFFSETS, _OFFSETS, _OUT))
def copy_ranges(data: Any, starts: Any, ends: Any, to: Any, out: Any) -> None:
    """Copy data[starts[i]:ends[i]] to out at to[i], for each i.

    Args:
        data: bytes of the rows.
        starts: first byte of each range.
        ends: end of each range.
        to: position in `out` of each range.
        out: written to.
    """
    for i in range(len(starts)):
        shift = to[i] - starts[i]
        for at in range(starts[i], ends[i]):
            out[at + shift] = data[at]


@_kernel(types.void(_OFFSETS, _BYTES, _OFFSETS, _BYTES, types.Array(types.int32, 1, "C")))
def search_right(offsets: Any, data: Any, bound_offsets: Any, bound_data: Any, out: Any) -> None:
    """Write, for each row, the number of ascending bounds that are <= its bytes.

    Args:
        offsets: int64 offsets of the rows' bytes.
        data: bytes of the rows.
        bound_offsets: offsets of the bounds.
        bound_data: bytes of the bounds, ascending.
        out: int32, one per row; written to.
    """
    for i in range(len(out)):
        start = offsets[i]
        size = offsets[i + 1] - start
        low = 0
        high = len(bound_offsets) - 1
        while low < high:
            middle = (low + high) >> 1
            at = bound_offsets[middle]
            bound_size = bound_offsets[middle + 1] - at
            shared = min(size, bound_size)
            k = 0
            while k < shared and data[start + k] == bound_data[at + k]:
                k += 1
            below = bound_data[at + k] < data[start + k] if k < shared else bound_size <= size
            if below:
                low = middle + 1
            else:
                high = middle
        out[i] = low
