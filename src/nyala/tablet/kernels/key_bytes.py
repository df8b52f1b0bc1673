"""Building blocks of kernels: memory by address, comparison of encoded keys, search in a key index.

Addresses, not arrays: a function with arrays as arguments, inlined into a loop, counts their references in
each round, which takes 60 ns. Callers keep the arrays alive. Rules as in common/kernels.
"""

# mypy: allow-untyped-decorators

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_I = types.int64
_U = np.uint64
FAR, NEAR = 16, 8
"""Prefetch distances in keys: of the slot, and then of the key in that slot."""


def _pointer_to(element: Any) -> Any:
    @intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(element)(types.int64), generate

    return pointer


u8_at, u16_at, i32_at, i64_at, u64_at = (
    _pointer_to(t) for t in (types.uint8, types.uint16, types.int32, types.int64, types.uint64)
)
"""The array of such numbers at an address."""


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the memory at an address into the cache."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        wanted = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        builder.call(wanted, [place, number(0), number(3), number(1)])  # to read, keep it, data
        return context.get_dummy_value()

    return types.void(types.int64), generate


@njit(types.boolean(_I, _I, _I, _I, _I, _I, _I), nogil=True, cache=True, inline="always")
def same(width: Any, layout: Any, data: Any, i: Any, other_layout: Any, other: Any, j: Any) -> Any:
    """Return whether key i and key j of other keys have equal bytes.

    Args:
        width: width of all keys of both; 0 if they vary.
        layout: address of the positions of the first keys; not looked at if all have one width.
        data: address of their bytes.
        i: a key.
        other_layout: as `layout`, of the others.
        other: as `data`, of the others.
        j: a key of the others.
    """
    if width == 8:
        return u64_at(data)[i] == u64_at(other)[j]
    if width > 0:
        size, at, to = width, data + i * width, other + j * width
    else:
        begin, following = i64_at(layout)[i], i64_at(other_layout)[j]
        size = i64_at(layout)[i + 1] - begin
        if i64_at(other_layout)[j + 1] - following != size:
            return False
        at, to = data + begin, other + following
    words = size >> 3
    for k in range(words):
        if u64_at(at)[k] != u64_at(to)[k]:
            return False
    k = words << 3
    while k < size and u8_at(at)[k] == u8_at(to)[k]:
        k += 1
    return k == size


@njit(types.uint64(types.uint64, types.uint64), nogil=True, cache=True, inline="always")
def home(h: Any, size: Any) -> Any:
    """Return the slot where the search for a hash begins: its lower half as a part of the whole."""
    return (h & _U(0xFFFFFFFF)) * size >> _U(32)


@njit(types.uint64(types.uint64, types.uint64), nogil=True, cache=True, inline="always")
def following(at: Any, size: Any) -> Any:
    """Return the slot after one."""
    at += _U(1)
    return at if at < size else _U(0)


@njit(
    types.void(types.uint64, types.int64, types.int64, types.int64, types.int64, types.uint64),
    nogil=True,
    cache=True,
    inline="always",
)
def prefetch_key(slot: Any, width: Any, layout: Any, data: Any, rows: Any, h: Any) -> None:
    """Prefetch the key of a slot, if its hash matches.

    Args:
        slot: slot of the index.
        width: bytes of a key; 0: keys have several lengths.
        layout: address of the keys' offsets.
        data: address of the keys' bytes.
        rows: number of rows.
        h: hash of the key.
    """
    row = types.int64(slot & _U(0xFFFFFFFF)) - 1
    if (slot ^ h) >> _U(32) == _U(0) and 0 <= row < rows:
        prefetch(data + row * width if width > 0 else layout + 8 * row)


@njit(
    types.int64(_I, types.uint64, _I, _I, _I, _I, _I, _I, _I, _I, types.uint64),
    nogil=True,
    cache=True,
    inline="always",
)
def newest_row(
    slots: Any, size: Any, width: Any, layout: Any, data: Any, rows: Any, prev: Any,
    key_layout: Any, keys: Any, key: Any, h: Any,
) -> Any:  # fmt: skip
    """Return the newest row < `rows` of a key in one rowset, or -1; all but numbers are addresses.

    `slots` may be written meanwhile: a slot that names a row >= `rows` is followed along `prev` to the
    newest row that the reader knows.

    Args:
        slots: address of the index.
        size: number of slots.
        width: bytes of a key; 0: keys have several lengths.
        layout: address of the offsets of the rowset's keys.
        data: address of the bytes of the rowset's keys.
        rows: rows known to the reader; newer ones are skipped.
        prev: address of each row's older version.
        key_layout: address of the offsets of the wanted keys.
        keys: address of the bytes of the wanted keys.
        key: number of the wanted key.
        h: hash of the key.
    """
    tag = ~_U(0xFFFFFFFF)
    at = home(h, size)
    while True:
        slot = u64_at(slots)[at]
        if slot == _U(0):
            return types.int64(-1)
        if (slot & tag) == (h & tag):
            row = types.int64(slot & _U(0xFFFFFFFF)) - 1
            while row >= rows:
                row = i64_at(prev)[row]
            if row >= 0 and same(width, layout, data, row, key_layout, keys, key):
                return row
        at = following(at, size)


@njit(types.UniTuple(types.uint64, 2)(_U8), nogil=True, cache=True)
def word_range(data: Any) -> Any:
    """Return the least and the greatest of keys of eight bytes, big-endian, as numbers."""
    low, high = ~np.uint64(0), np.uint64(0)
    for at in range(0, len(data), 8):
        word = np.uint64(0)
        for k in range(8):
            word = word << np.uint64(8) | np.uint64(data[at + k])
        low = min(low, word)
        high = max(high, word)
    return low, high
