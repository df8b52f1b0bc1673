"""Naive implementation of keys and hash v1 in plain Python, after docs/internals/keys-and-hashes.md."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from nyala.common.types import arrow_type

WORD = (1 << 64) - 1
EPOCH = datetime(1970, 1, 1)


def whole(value: Any, kind: pa.DataType) -> tuple[int, int]:
    """Return a value's integer and its width in bytes."""
    if isinstance(value, Decimal):
        return int(Fraction(value) * 10**kind.scale), 16
    if isinstance(value, datetime):
        naive = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        return (naive - EPOCH) // timedelta(microseconds=1), 8
    if isinstance(value, date):
        return (value - EPOCH.date()).days, 4
    return value, kind.bit_width // 8


def encode(values: list[Any], kinds: list[pa.DataType]) -> bytes:
    out = b""
    for number, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        if isinstance(value, str | bytes):
            raw = value.encode() if isinstance(value, str) else value
            final = number == len(kinds) - 1
            out += raw if final else raw.replace(b"\0", b"\0\1") + b"\0\0"
        else:
            integer, width = whole(value, kind)
            out += (integer + (1 << 8 * width - 1)).to_bytes(width, "big")
    return out


def mix(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & WORD
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & WORD
    return h ^ h >> 33


def hash_v1(key: bytes, seed: int) -> int:
    h = mix(seed ^ (len(key) + 1) * 0x9E3779B97F4A7C15 & WORD)
    for at in range(0, len(key), 8):
        word = int.from_bytes(key[at : at + 8], "little") * 0x87C37B91114253D5 & WORD
        word = (word << 31 | word >> 33) & WORD
        h ^= word * 0x4CF5AD432745937F & WORD
        h = (h << 27 | h >> 37) & WORD
        h = (h * 5 + 0x52DCE729) & WORD
    return mix(h)


def from_json(value: Any, name: str) -> Any:
    """Return the Python value that a golden file writes as JSON."""
    kind = arrow_type(name)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_date(kind):
        return date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return datetime.fromisoformat(value)
    return bytes.fromhex(value) if kind == pa.binary() else value
