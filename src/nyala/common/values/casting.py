"""Exact conversion of Arrow data to a stored type: data with a value that would change is rejected.

Supported: variants of a type to the plain one (large, view, dictionary, run-end encoded), integers, floats
and decimals to one another if each value is exact, dates and timestamps of other units if no digit is lost,
dates to naive timestamps. Not supported: strings to and from other types, naive timestamps to and from zoned
ones, booleans to and from numbers. Decimals become floats only if the user requests the rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.types import plain_type

_ALLOWED = {
    ("integer", "integer"),
    ("integer", "float"),
    ("integer", "decimal"),
    ("float", "integer"),
    ("float", "float"),
    ("decimal", "decimal"),
    ("decimal", "integer"),
    ("string", "string"),
    ("binary", "binary"),
    ("bool", "bool"),
    ("date", "date"),
    ("date", "naive timestamp"),
    ("naive timestamp", "naive timestamp"),
    ("zoned timestamp", "zoned timestamp"),
}
_HINTS = {
    ("naive timestamp", "zoned timestamp"): "a time without a time zone does not name a moment",
    ("zoned timestamp", "naive timestamp"): "the column stores no time zone",
    (
        "float",
        "decimal",
    ): "binary fractions are not decimal ones; pass decimal.Decimal values, or cast the column to a decimal "
    "type first, which rounds",
    (
        "decimal",
        "float",
    ): "decimal fractions are not binary ones; round_decimals=True of a write stores the nearest values",
}
_ADVICE = {
    ("float", "float"): "to round the values, cast the column to float32 first",
    (
        "float",
        "integer",
    ): "correct the value, or pass integers (in pandas: Int64): from 2**53 on, of 32-bit "
    "floats 2**24, one floating-point number stands for several integers",
    ("naive timestamp", "naive timestamp"): "to round the times, cast them to microseconds first",
    ("zoned timestamp", "zoned timestamp"): "to round the times, cast them to microseconds first",
}


@dataclass(frozen=True, slots=True)
class Conversion:
    """Conversions that are done only if the user requests them.

    Attributes:
        nan_is_null: True: NaN becomes null; False: NaN is stored in float and double columns, also NaN of a
            pandas frame; None: NaN of a pandas frame is a missing value, thus null, and any other NaN is
            stored.
        round_decimals: decimals are rounded to the nearest values of float and double columns.
    """

    nan_is_null: bool | None = None
    round_decimals: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.nan_is_null, bool | None):
            raise InvalidArgument(f"nan_is_null={self.nan_is_null!r}: pass True, False or None")
        if not isinstance(self.round_decimals, bool):
            raise InvalidArgument(f"round_decimals={self.round_decimals!r}: pass True or False")


class Requested(TypedDict, total=False):
    """Arguments of writes: the attributes of `Conversion`."""

    nan_is_null: bool | None
    round_decimals: bool


EXACT = Conversion()


def conversion_of(given: Mapping[str, Any]) -> Conversion:
    """Return the conversions that a call requests.

    Raises:
        InvalidArgument: a value that is none of its argument.
        TypeError: an unknown argument.
    """
    known = Requested.__annotations__
    for name in given:
        if name not in known:
            raise TypeError(
                f"unexpected argument {name!r}; the arguments for conversions are {' and '.join(known)}, the "
                "others are in help() of the method"
            )
    return Conversion(**given)


def family(kind: pa.DataType) -> str:
    """Return the family of a type, such as "integer"; for an unsupported type, its name."""
    types = pa.types
    if types.is_timestamp(kind):
        return "naive timestamp" if kind.tz is None else "zoned timestamp"
    for name, test in (
        ("integer", types.is_integer),
        ("float", types.is_floating),
        ("decimal", types.is_decimal),
        ("date", types.is_date),
        ("bool", types.is_boolean),
        ("binary", types.is_fixed_size_binary),
    ):
        if test(kind):
            return name
    plain = plain_type(kind)
    if plain == pa.string():
        return "string"
    return "binary" if plain == pa.binary() else str(kind)


def check_types(given: pa.DataType, target: pa.DataType, what: str) -> None:
    """Reject a type that never converts to a stored type.

    Args:
        given: type of the data.
        target: the stored type.
        what: description of the values, as for `exact_cast`.

    Raises:
        SchemaMismatch: the types never convert.
    """
    pair = (family(given), family(target))
    if pair not in _ALLOWED and not pa.types.is_null(given):
        hint = _HINTS.get(pair, "they do not convert without loss")
        raise SchemaMismatch(
            f"{what} has type {given}, but the table stores {target}: {hint}; convert the data first"
        )


def exact_cast(
    values: pa.ChunkedArray,
    target: pa.DataType,
    what: str,
    first_row: int = 0,
    conversion: Conversion = EXACT,
) -> pa.ChunkedArray:
    """Convert values to a stored type.

    Args:
        values: any Arrow data.
        target: the stored type.
        what: description of the values for errors, such as "column 'a'".
        first_row: row number of the first value, for errors.
        conversion: the conversions that the user requests.

    Raises:
        SchemaMismatch: the types do not convert, or a value is not exact; the message names row and value.
    """
    if conversion.nan_is_null and pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
        if values.null_count == len(values):
            return pa.chunked_array([pa.nulls(len(values), target)])
    if values.type == target:
        return values
    if pa.types.is_dictionary(values.type):
        plain = plain_type(values.type)  # Arrow cannot take() from views
        decoded = [c.dictionary.cast(plain).take(c.indices) for c in values.chunks]
        return exact_cast(pa.chunked_array(decoded, plain), target, what, first_row, conversion)
    if pa.types.is_run_end_encoded(values.type):
        return exact_cast(pc.run_end_decode(values), target, what, first_row, conversion)
    if pa.types.is_float16(values.type):
        return exact_cast(values.cast(pa.float32()), target, what, first_row)  # each value is exact
    if pa.types.is_null(values.type):
        return pa.chunked_array([pa.nulls(len(values), target)])
    pair = (family(values.type), family(target))
    if conversion.round_decimals and pair == ("decimal", "float"):
        return _rounded(values, target, what, first_row)
    check_types(values.type, target, what)
    try:
        return _strict(values, target)
    except pa.ArrowException as err:
        bad = _first_bad(values, target)
        row, shown = first_row + bad, _shown(values[bad])
        advice = _ADVICE.get(pair, "correct the value, or use a column of another type")
        raise SchemaMismatch(
            f"{what}, row {row}: {shown} does not convert without loss from "
            f"{values.type} to {target}, the type that the table stores; nothing was sent; {advice}",
            {"row": str(row)},
        ) from err


def _rounded(
    values: pa.ChunkedArray, target: pa.DataType, what: str, first_row: int
) -> pa.ChunkedArray:
    """Convert decimals to the nearest floats, by way of text: Arrow's own cast is not always the nearest."""
    made = values.cast(pa.string()).cast(target)
    bad = pc.index(pc.is_inf(made), True).as_py()
    if bad >= 0:
        row = first_row + bad
        raise SchemaMismatch(
            f"{what}, row {row}: {_shown(values[bad])} is outside the range of {target}, the type that the "
            "table stores; nothing was sent; correct the value, or use a column of another type",
            {"row": str(row)},
        )
    return made


def _strict(values: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast; raise ArrowException if a value would change."""
    pair = (family(values.type), family(target))
    if pair == ("integer", "decimal"):
        values = values.cast(pa.decimal256(20, 0)).cast(pa.decimal256(76, target.scale))
    made = values.cast(target)
    if pair == ("float", "integer") and _is_ambiguous(values):
        raise pa.ArrowInvalid("one of several integers")
    if "float" in pair:  # Arrow rounds to a narrower float without an error
        back = made.cast(values.type, safe=False)
        same = pc.equal(back, values)
        if pair[0] == "float":
            same = pc.or_kleene(same, pc.is_nan(values))
        if pc.all(same, min_count=0).as_py() is False:
            raise pa.ArrowInvalid(f"not exact as {target}")
    return made


def _is_ambiguous(values: pa.ChunkedArray) -> bool:
    """Return whether a float stands for several integers, as pandas' floats for integers beside nulls do."""
    limit = 2.0**24 if values.type == pa.float32() else 2.0**53
    large = pc.greater_equal(pc.abs(values), pa.scalar(limit, values.type))
    return pc.any(large).as_py() is True


def _first_bad(values: pa.ChunkedArray, target: pa.DataType) -> int:
    """Return the first row whose value does not convert, by binary search."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            _strict(values.slice(low, middle - low), target)
            low = middle
        except pa.ArrowException:
            high = middle
    return low


def _shown(value: pa.Scalar) -> str:
    """Format a value for an error; times as numbers, because Python's years are limited."""
    moment = pa.types.is_timestamp(value.type) or pa.types.is_date(value.type)
    return str(value.value if moment else value)[:60]
