"""Order-preserving encoding of keys: the byte order is the tuple order of the values.

Integers, dates and timestamps are big-endian with the sign bit flipped, decimals likewise in 16 bytes; a
string or binary that is not the last component escapes 00 as 00 01 and ends with 00 00; the last one is raw.
The bytes are stored and sent: docs/internals/keys-and-hashes.md.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.errors import Corrupt
from nyala.common.keys.hashing import kernels
from nyala.common.keys.key_bytes import (
    Bytes,
    Int64s,
    KeyBytes,
    concat,
    from_bytes,
    offsets_of,
    string_views,
)

__all__ = [
    "KeyBytes", "concat", "decode_keys", "encode_key", "encode_keys", "encode_prefix", "fixed_width",
    "from_bytes", "successor",
]  # fmt: skip
_WIDTHS = {
    pa.int8(): 1,
    pa.int16(): 2,
    pa.int32(): 4,
    pa.int64(): 8,
    pa.date32(): 4,
    pa.timestamp("us"): 8,
    pa.timestamp("us", "UTC"): 8,
}
_WIDTHS_BY_ID = {**{kind.id: width for kind, width in _WIDTHS.items()}, pa.decimal128(1).id: 16}
"""Widths in bytes by type id, with decimals; hashing an Arrow type is slow."""
_SIGNS = {w: np.array(1 << 8 * w - 1, f"<u{w}") for w in (1, 2, 4, 8)}
_BIG = {w: np.dtype(f">u{w}") for w in _SIGNS}
_STRINGS = (pa.string(), pa.binary())
_STRING_IDS = tuple(t.id for t in _STRINGS)


def fixed_width(types: Sequence[pa.DataType]) -> int | None:
    """Return the width in bytes of keys of these types; None: it varies."""
    widths = []
    for kind in types:
        if kind.id in _STRING_IDS:
            return None
        widths.append(_width(kind))
    return sum(widths)


def encode_keys(
    arrays: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[pa.DataType]
) -> KeyBytes:
    """Encode rows of key values.

    Args:
        arrays: one per component, of equal length, without nulls (which the caller reports); slices and
            chunked arrays are allowed.
        types: the stored type of each component.
    """
    return _encode(arrays, types, len(types))


def encode_prefix(values: Sequence[pa.Scalar], types: Sequence[pa.DataType]) -> bytes:
    """Encode the first components: the prefix of all keys with these values."""
    if not values:
        return b""
    return _encode([pa.repeat(v, 1) for v in values], types[: len(values)], len(types)).key_at(0)


def encode_key(values: Sequence[pa.Scalar], types: Sequence[pa.DataType]) -> bytes:
    """Encode one key from a value for each component."""
    assert len(values) == len(types), f"{len(values)} values for {len(types)} components"
    return encode_prefix(values, types)


def successor(prefix: bytes) -> bytes | None:
    """Return the lowest bytes above everything with a prefix; None: there are none."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None


def decode_keys(keys: KeyBytes, types: Sequence[pa.DataType]) -> list[pa.Array]:
    """Decode keys to one array per component.

    Raises:
        Corrupt: bytes that are not an encoding for these types; the message names the first invalid key.
    """
    cursor, ends = keys.offsets[:-1].copy(), keys.offsets[1:]
    arrays = []
    for number, kind in enumerate(types):
        if kind in _STRINGS:
            final = number == len(types) - 1
            array = _take_rest(keys, cursor, kind) if final else _take_escaped(keys, cursor, kind)
        else:
            out = np.empty((len(keys), _width(kind)), np.uint8)
            if len(types) == 1 and keys.offsets[-1] == out.size and _all_wide(keys, out.shape[1]):
                out, cursor = keys.data.reshape(out.shape), ends
            else:
                _refuse(kernels().take_fixed(keys.data, cursor, ends, out), keys, kind)
            array = _fixed_array(out, kind)
        arrays.append(array)
    if not np.array_equal(cursor, ends):
        _refuse(int(np.argmax(cursor != ends)), keys, types[-1])
    return arrays


def _encode(
    arrays: Sequence[pa.Array | pa.ChunkedArray], types: Sequence[pa.DataType], components: int
) -> KeyBytes:
    assert 0 < len(arrays) == len(types), f"{len(arrays)} arrays for {len(types)} components"
    flat = [a.combine_chunks() if isinstance(a, pa.ChunkedArray) else a for a in arrays]
    rows = len(flat[0])
    for array, kind in zip(flat, types, strict=True):
        assert array.type == kind, f"a key component of type {array.type}, not {kind}"
        assert len(array) == rows, f"{len(array)} rows, not {rows}"
        assert array.null_count == 0, f"{array.null_count} nulls in a key"
    width = fixed_width(types)
    if width is not None:
        parts = [_fixed_matrix(a) for a in flat]
        matrix = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return KeyBytes(np.array([width], np.int64), matrix.reshape(-1))
    return _encode_varying(flat, types, components)


def _encode_varying(
    arrays: Sequence[pa.Array], types: Sequence[pa.DataType], components: int
) -> KeyBytes:
    run = kernels()
    lengths = np.zeros(len(arrays[0]), np.int64)
    views: list[tuple[Int64s, Bytes] | Bytes] = []
    for number, (array, kind) in enumerate(zip(arrays, types, strict=True)):
        if kind not in _STRINGS:
            views.append(_fixed_matrix(array))
            lengths += _width(kind)
            continue
        offsets, data = string_views(array)
        views.append((offsets, data))
        if number == components - 1:
            lengths += np.diff(offsets)
        else:
            run.add_escaped_lengths(offsets, data, lengths)
    offsets = offsets_of(lengths)
    cursor, out = offsets[:-1].copy(), np.empty(int(offsets[-1]), np.uint8)
    for number, view in enumerate(views):
        if isinstance(view, tuple):
            run.put_bytes(*view, cursor, out, number == components - 1)
        else:
            run.put_fixed(view, cursor, out)
    assert np.array_equal(cursor, offsets[1:]), "key bytes written do not match their lengths"
    return KeyBytes(offsets, out)


def _width(kind: pa.DataType) -> int:
    found = _WIDTHS_BY_ID.get(kind.id)
    assert found is not None, f"{kind} cannot be in a key"
    return found


def _fixed_matrix(array: pa.Array) -> Bytes:
    """Return big-endian, sign-flipped values as a matrix of rows × width."""
    width = _width(array.type)
    count = len(array)
    if not count:
        return np.empty((0, width), np.uint8)
    data, begin = array.buffers()[1], array.offset * width
    if width == 16:
        raw = np.frombuffer(data, np.uint8, count * width, begin).reshape(count, width)
        matrix = raw[:, ::-1].copy()
        matrix[:, 0] ^= 0x80
        return matrix
    sign = _SIGNS[width]
    flipped = np.frombuffer(data, sign.dtype, count, begin) ^ sign
    big: Bytes = flipped.astype(_BIG[width]).view(np.uint8)
    return big.reshape(count, width)


def _fixed_array(matrix: Bytes, kind: pa.DataType) -> pa.Array:
    width = matrix.shape[1]
    raw: npt.NDArray[Any]
    if width == 16:
        raw = matrix[:, ::-1].copy()
        raw[:, -1] ^= 0x80
    else:
        raw = matrix.reshape(-1).view(f">u{width}").astype(f"<u{width}") ^ _SIGNS[width]
    array = pa.Array.from_buffers(kind, len(matrix), [None, pa.py_buffer(raw)])
    return _checked(array)


def _string_array(offsets: Int64s, data: Bytes, kind: pa.DataType) -> pa.Array:
    assert offsets[-1] < 1 << 31, f"{offsets[-1]} bytes of key strings in one array"
    narrow = offsets.astype(np.int32)
    return _checked(
        pa.Array.from_buffers(
            kind, len(offsets) - 1, [None, pa.py_buffer(narrow), pa.py_buffer(data)]
        )
    )


def _take_escaped(keys: KeyBytes, cursor: Int64s, kind: pa.DataType) -> pa.Array:
    offsets, out = np.zeros(len(keys) + 1, np.int64), np.empty(len(keys.data), np.uint8)
    bad = kernels().take_escaped(keys.data, cursor, keys.offsets[1:], offsets, out)
    _refuse(bad, keys, kind)
    return _string_array(offsets, out[: offsets[-1]], kind)


def _take_rest(keys: KeyBytes, cursor: Int64s, kind: pa.DataType) -> pa.Array:
    ends = keys.offsets[1:]
    offsets = offsets_of(ends - cursor)
    out = np.empty(int(offsets[-1]), np.uint8)
    kernels().copy_ranges(keys.data, cursor, ends, offsets[:-1], out)
    cursor[:] = ends
    return _string_array(offsets, out, kind)


def _all_wide(keys: KeyBytes, width: int) -> bool:
    return bool(np.all(np.diff(keys.offsets) == width))


def _checked(array: pa.Array) -> pa.Array:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as err:
        raise Corrupt(f"encoded keys hold values that are no {array.type}: {err}") from err
    return array


def _refuse(row: int, keys: KeyBytes, kind: pa.DataType) -> None:
    if row >= 0:
        shown = keys.key_at(row)[:32].hex()
        raise Corrupt(
            f"encoded key {row} ({shown}) does not hold what its columns need at a component of "
            f"type {kind}; the bytes were damaged, or made for other columns"
        )
