"""Kernels that read many small Arrow IPC messages at once, such as a run of one-row writes.

Arrow's own reader takes ten microseconds per message; these kernels a few hundred for a group of a hundred.
Other messages (compressed, of another version, with a wrong null count, out of bounds) are left to Arrow's
reader, which reports errors. Rules as in common/kernels. The bytes are sent by clients: every access is
within bounds that were checked before.
"""

# mypy: allow-untyped-decorators

from typing import Any

from numba import njit, types

from nyala.tablet.kernels.key_bytes import u8_at

_U8 = types.Array(types.uint8, 1, "C", readonly=True)
_I64 = types.Array(types.int64, 1, "C", readonly=True)
_I64S = types.Array(types.int64, 2, "C", readonly=True)
_OUT_U8 = types.Array(types.uint8, 1, "C")
_OUT_I32 = types.Array(types.int32, 1, "C")
_OUT_I64 = types.Array(types.int64, 1, "C")
_OUT_I64S = types.Array(types.int64, 2, "C")
_V5, _RECORD_BATCH = 4, 3
MAX_ROWS = 1 << 20
"""Of one message that is read here."""


@njit(types.int64(types.int64, types.int64, types.int64), nogil=True, cache=True, inline="always")
def _number(data: Any, at: Any, width: Any) -> Any:
    """Read an unsigned little-endian number of up to 8 bytes; `data` is the address of byte 0."""
    value = types.int64(0)
    for k in range(width):
        value |= types.int64(u8_at(data)[at + k]) << types.int64(8 * k)
    return value


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64),
    nogil=True,
    cache=True,
)
def _field(data: Any, table: Any, field: Any, low: Any, high: Any) -> Any:
    """Return the position of a field of a flatbuffer table; 0: absent; -1: out of bounds."""
    if table < low or table + 4 > high:
        return -1
    back = types.int64(types.int32(_number(data, table, 4)))
    vtable = table - back
    if vtable < low or vtable + 4 > high:
        return -1
    size = _number(data, vtable, 2)
    if vtable + size > high:
        return -1
    if 4 + 2 * field + 2 > size:
        return 0
    offset = _number(data, vtable + 4 + 2 * field, 2)
    if offset == 0:
        return 0
    at = table + offset
    return at if at + 8 <= high else -1


@njit(
    types.int64(types.int64, types.int64, types.int64, types.int64, types.int64, types.int64),
    nogil=True,
    cache=True,
)
def _vector(data: Any, at: Any, count: Any, width: Any, low: Any, high: Any) -> Any:
    """Return the position of the items of a vector of structs of the given number, or -1."""
    if at <= 0:
        return -1
    begin = at + _number(data, at, 4)
    if begin < low or begin + 4 > high:
        return -1
    if _number(data, begin, 4) != count or begin + 4 + count * width > high:
        return -1
    return begin + 4


@njit(
    types.int64(
        types.int64, types.int64, types.int64, types.int64, types.int64, _OUT_I64, _OUT_I64, _OUT_I64
    ),
    nogil=True,
    cache=True,
)  # fmt: skip
def _read_one(
    data: Any, begin: Any, end: Any, columns: Any, buffers: Any, nulls: Any, starts: Any, sizes: Any
) -> Any:
    """Read one message's layout; return its rows, or -1 if it is not a plain one."""
    if end - begin < 8 or _number(data, begin, 4) != 0xFFFFFFFF:
        return -1
    low = begin + 8
    body = low + _number(data, begin + 4, 4)
    if body > end or low + 8 > body:
        return -1
    high = body
    root = low + _number(data, low, 4)
    version = _field(data, root, 0, low, high)
    kind = _field(data, root, 1, low, high)
    header = _field(data, root, 2, low, high)
    length = _field(data, root, 3, low, high)
    if version <= 0 or kind <= 0 or header <= 0 or length < 0:
        return -1
    if _number(data, version, 2) != _V5 or u8_at(data)[kind] != _RECORD_BATCH:
        return -1
    body_size = types.int64(0) if length == 0 else _number(data, length, 8)
    if body_size < 0 or body_size > end - body:
        return -1
    table = header + _number(data, header, 4)
    if _field(data, table, 3, low, high) != 0 or _field(data, table, 4, low, high) != 0:
        return -1  # compressed, or with views
    rows_at = _field(data, table, 0, low, high)
    nodes = _vector(data, _field(data, table, 1, low, high), columns, 16, low, high)
    places = _vector(data, _field(data, table, 2, low, high), buffers, 16, low, high)
    if rows_at < 0 or nodes < 0 or places < 0:
        return -1
    rows = types.int64(0) if rows_at == 0 else _number(data, rows_at, 8)
    if rows < 0 or rows > MAX_ROWS:
        return -1
    for c in range(columns):
        if _number(data, nodes + 16 * c, 8) != rows:
            return -1
        nulls[c] = _number(data, nodes + 16 * c + 8, 8)
        if nulls[c] < 0 or nulls[c] > rows:
            return -1
    for b in range(buffers):
        at = _number(data, places + 16 * b, 8)
        size = _number(data, places + 16 * b + 8, 8)
        if at < 0 or size < 0 or at > body_size or size > body_size - at:
            return -1
        starts[b] = body + at
        sizes[b] = size
    return rows


@njit(
    types.boolean(_U8, _I64, _I64, types.int64, types.int64, _OUT_I64, _OUT_I64S, _OUT_I64S, _OUT_I64S),
    nogil=True,
    cache=True,
)  # fmt: skip
def layouts(
    data: Any, begins: Any, ends: Any, columns: Any, buffers: Any,
    rows: Any, nulls: Any, starts: Any, sizes: Any,
) -> Any:  # fmt: skip
    """Read the layouts of messages data[begins[m]:ends[m]]; return whether all are plain ones.

    Args:
        data: the bytes of all.
        begins: offset at which each message begins.
        ends: offset at which each message ends.
        columns: that each has.
        buffers: that each has.
        rows: out, of each message.
        nulls: out, messages × columns.
        starts: out, messages × buffers: where each begins in `data`.
        sizes: out, messages × buffers: its bytes.
    """
    base = data.ctypes.data
    for m in range(len(begins)):
        rows[m] = _read_one(
            base, begins[m], ends[m], columns, buffers, nulls[m], starts[m], sizes[m]
        )
        if rows[m] < 0:
            return False
    return True


@njit(
    types.int64(_U8, _I64, _I64S, _I64S, _I64S, types.int64, types.int64, _OUT_U8),
    nogil=True,
    cache=True,
)
def join_bits(
    data: Any, rows: Any, nulls: Any, starts: Any, sizes: Any, column: Any, buffer: Any, out: Any
) -> Any:
    """Join one bitmap of all messages into `out`, zeroed; return the bits that are 0, or -1: refused.

    With `column` >= 0 it is that column's validity: absent where it has no nulls, and counted.

    Args:
        data: bytes of all messages.
        rows: rows of each message.
        nulls: null counts, messages × columns.
        starts: position of each buffer in `data`, messages × buffers.
        sizes: bytes of each buffer, messages × buffers.
        column: index of the column; negative: a bitmap of values.
        buffer: index of the buffer in a message.
        out: written to.
    """
    at = types.int64(0)
    zeros = types.int64(0)
    for m in range(len(rows)):
        begin = starts[m, buffer]
        given = column < 0 or nulls[m, column] > 0
        if given and sizes[m, buffer] < (rows[m] + 7) >> 3:
            return -1
        message_zeros = types.int64(0)
        for i in range(rows[m]):
            if not given or (data[begin + (i >> 3)] >> (i & 7)) & 1:
                out[at >> 3] |= types.uint8(1 << (at & 7))
            else:
                message_zeros += 1
            at += 1
        if column >= 0 and message_zeros != nulls[m, column]:
            return -1
        zeros += message_zeros
    return zeros


@njit(
    types.boolean(_U8, _I64, _I64S, _I64S, types.int64, types.int64, _OUT_U8),
    nogil=True,
    cache=True,
)
def join_fixed(
    data: Any, rows: Any, starts: Any, sizes: Any, buffer: Any, width: Any, out: Any
) -> Any:
    """Join one buffer of values of `width` bytes of all messages; return False if one is too short.

    Args:
        data: bytes of all messages.
        rows: rows of each message.
        starts: position of each buffer in `data`, messages × buffers.
        sizes: bytes of each buffer, messages × buffers.
        buffer: index of the buffer in a message.
        width: bytes of one value.
        out: written to.
    """
    to = 0
    for m in range(len(rows)):
        size = rows[m] * width
        if sizes[m, buffer] < size:
            return False
        begin = starts[m, buffer]
        for k in range(size):
            out[to + k] = data[begin + k]
        to += size
    return True


@njit(
    types.int64(_U8, _I64, _I64S, _I64S, types.int64, _OUT_I32),
    nogil=True,
    cache=True,
)
def join_offsets(data: Any, rows: Any, starts: Any, sizes: Any, buffer: Any, out: Any) -> Any:
    """Join one buffer of string offsets, from 0 on; return the bytes of all strings, or -1: refused.

    The strings' own buffer is the next one.

    Args:
        data: bytes of all messages.
        rows: rows of each message.
        starts: position of each buffer in `data`, messages × buffers.
        sizes: bytes of each buffer, messages × buffers.
        buffer: index of the buffer in a message.
        out: written to.
    """
    base = data.ctypes.data
    total = types.int64(0)
    to = 0
    out[0] = 0
    for m in range(len(rows)):
        if rows[m] == 0:
            continue
        if sizes[m, buffer] < 4 * (rows[m] + 1):
            return -1
        at = starts[m, buffer]
        first = types.int64(types.int32(_number(base, at, 4)))
        before = first
        for i in range(rows[m]):
            following = types.int64(types.int32(_number(base, at + 4 * (i + 1), 4)))
            if first < 0 or following < before or following > sizes[m, buffer + 1]:
                return -1
            total += following - before
            if total > 0x7FFFFFFF:
                return -1
            before = following
            to += 1
            out[to] = total
    return total


@njit(types.void(_U8, _I64, _I64S, types.int64, _OUT_U8), nogil=True, cache=True)
def join_strings(data: Any, rows: Any, starts: Any, buffer: Any, out: Any) -> None:
    """Join the strings whose offsets (buffer `buffer`) `join_offsets` has validated.

    Args:
        data: bytes of all messages.
        rows: rows of each message.
        starts: position of each buffer in `data`, messages × buffers.
        buffer: index of the buffer in a message.
        out: written to.
    """
    base = data.ctypes.data
    to = 0
    for m in range(len(rows)):
        if rows[m] == 0:
            continue
        at = starts[m, buffer]
        first = _number(base, at, 4)
        begin = starts[m, buffer + 1] + first
        size = _number(base, at + 4 * rows[m], 4) - first
        for k in range(size):
            out[to + k] = data[begin + k]
        to += size
