"""Encoding of a few rows in the response to a look-up: msgpack, for each key nil or an array of its values.

Arrow messages would dominate the cost of a look-up of one row. A date is encoded as its days, a timestamp as
its microseconds, a decimal as its digits; other values as in msgpack.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from nyala.common.errors import Unavailable
from nyala.common.values.python_values import python_of

Row = Sequence[Any]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[list[Any] | None]).decode


def encode_rows(rows: Sequence[Row | None]) -> bytes:
    """Encode rows of `plain_value`s."""
    return _encode(rows)


def plain_value(value: pa.Scalar) -> Any:
    """Return the encodable form of a value of any stored type."""
    kind = value.type
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return value.value
    found = value.as_py()
    return str(found) if isinstance(found, Decimal) else found


class RowReader:
    """Decoder of rows with some columns.

    Args:
        names: names of the columns.
        kinds: their types.
    """

    def __init__(self, names: Sequence[str], kinds: Sequence[pa.DataType]) -> None:
        self._names = list(names)
        self._special = [
            (name, made)
            for name, kind in zip(names, kinds, strict=True)
            if (made := _maker(kind)) is not None
        ]

    def read(self, raw: bytes, count: int) -> list[dict[str, Any] | None]:
        """Decode the rows in a response to `count` keys.

        Raises:
            Unavailable: the response is invalid.
        """
        try:
            rows = _decode(raw)
            if len(rows) != count:
                raise ValueError(f"{len(rows)} rows for {count} keys")
            return [None if row is None else self._row(row) for row in rows]
        except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as err:  # msgspec's too
            raise Unavailable(
                f"the response to a look-up cannot be read: {err}; send it again"
            ) from err

    def _row(self, values: Row) -> dict[str, Any]:
        row = dict(zip(self._names, values, strict=True))
        for name, made in self._special:
            value = row[name]
            if value is not None:
                row[name] = made(value)
        return row


def _maker(kind: pa.DataType) -> Callable[[Any], Any] | None:
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        return partial(_as_python, kind)
    return None


def _as_python(kind: pa.DataType, value: int) -> Any:
    return python_of(pa.scalar(value, kind))
