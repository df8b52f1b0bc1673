"""Encoding and location of single keys of plain Python values, without arrays.

For one row this costs a tenth of the general implementation (`keys/encoding.py`, `partition.py`). It gives
the same bytes and numbers, or None: unusual values, and their error messages, are left to that one.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.keys.hashing import hash_one
from nyala.common.partitioning.partition import PartitionSchema
from nyala.common.schema import Column, Schema

_Encode = Callable[[Any], bytes | None]
"""Returns the bytes of a value; None: use the general implementation."""
_INTEGERS = {pa.int8(): 1, pa.int16(): 2, pa.int32(): 4, pa.int64(): 8}


class _KeyPart:
    """Encoder of some columns of a key."""

    def __init__(self, keys: Sequence[Column], ids: Sequence[ColumnId]) -> None:
        positions = {c.id: n for n, c in enumerate(keys)}
        self._positions = [positions[i] for i in ids]
        last = len(ids) - 1
        made = [_encoder(keys[positions[i]].type, n == last) for n, i in enumerate(ids)]
        self._encoders = [e for e in made if e is not None]
        self.usable = len(self._encoders) == len(made)

    def encode(self, values: Sequence[Any]) -> bytes | None:
        """Return the bytes of these columns of a key; None: use the general implementation."""
        parts = []
        for position, encode in zip(self._positions, self._encoders, strict=True):
            part = encode(values[position])
            if part is None:
                return None
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class PlainKeys:
    """Encodes and locates the keys of one table.

    Args:
        schema: schema of the table.
        partitioned: partition schema of the table.
    """

    def __init__(self, schema: Schema, partitioned: PartitionSchema) -> None:
        columns = schema.key_columns
        self._names = [c.name for c in columns]
        self._primary_key = _KeyPart(columns, schema.key_ids)
        self._levels = [
            (_KeyPart(columns, level.column_ids), level.buckets, level.seed)
            for level in partitioned.hash
        ]
        self._ranged = _KeyPart(columns, partitioned.range_column_ids)
        self._lowers = [r.lower or b"" for r in partitioned.all_ranges]
        self._uppers = [r.upper for r in partitioned.all_ranges]

    def find(self, key: Mapping[str, Any]) -> tuple[int, bytes] | None:
        """Return the partition of a key (-1: none) and its bytes; None: use the general implementation."""
        if not self._primary_key.usable or len(key) != len(self._names):
            return None
        values = [key.get(name) for name in self._names]
        encoded = self._primary_key.encode(values)
        if encoded is None:
            return None
        within = self._ranged.encode(values) or b""
        number = bisect_right(self._lowers, within) - 1
        if number < 0:
            return -1, encoded
        upper = self._uppers[number]
        if upper is not None and within >= upper:
            return -1, encoded
        for part, buckets, seed in self._levels:
            hashed = part.encode(values)
            assert hashed is not None, "a part of a plain key is plain"
            number = number * buckets + (hash_one(hashed, seed) * buckets >> 64)
        return number, encoded


def _encoder(kind: pa.DataType, final: bool) -> _Encode | None:
    """Return an encoder for a type; None: use the general implementation."""
    width = _INTEGERS.get(kind)
    if width is not None:
        return _integers(width)
    if kind == pa.string():
        return _text if final else lambda value: _escaped(_text(value))
    if kind == pa.binary():
        return _bytes if final else lambda value: _escaped(_bytes(value))
    return None


def _integers(width: int) -> _Encode:
    half = 1 << 8 * width - 1

    def encode(value: Any) -> bytes | None:
        if type(value) is not int or not -half <= value < half:
            return None
        return (value + half).to_bytes(width, "big")

    return encode


def _text(value: Any) -> bytes | None:
    if type(value) is not str:
        return None
    try:
        return value.encode()
    except UnicodeEncodeError:
        return None


def _bytes(value: Any) -> bytes | None:
    return value if type(value) is bytes else None


def _escaped(raw: bytes | None) -> bytes | None:
    return None if raw is None else raw.replace(b"\0", b"\0\1") + b"\0\0"
