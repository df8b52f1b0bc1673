"""Comparison of two value expressions: which types compare, and how.

Integers and decimals compare exactly; with a float or double they are converted to it, as in DuckDB. A date
compares with a timestamp without a time zone as its midnight. NaN equals nothing and is not ordered.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.evaluation import GetColumn, Value, as_decimal, as_type, calculate
from nyala.common.expressions.tree import (
    Constant,
    Expression,
    common_decimal,
    common_float,
    exact_type,
    is_number,
)

Kernel = Callable[[Any, Any], Any]
DAY_US = 86_400_000_000
_MOMENTS = {pa.date32(), pa.timestamp("us")}


def check_comparable(left: Expression, right: Expression) -> None:
    """Reject two values that do not compare.

    Raises:
        InvalidArgument: types that do not compare, or decimals that no type holds both.
    """
    kinds = left.type, right.type
    if any(pa.types.is_null(k) for k in kinds):
        raise InvalidArgument("nothing equals null; write is null or is not null")
    if all(is_number(k) for k in kinds):
        exacts = exact_type(left), exact_type(right)
        if exacts[0] is not None and exacts[1] is not None:
            common_decimal(exacts[0], exacts[1])
    elif kinds[0] != kinds[1] and not set(kinds) <= _MOMENTS:
        raise InvalidArgument(f"a value of type {kinds[0]} does not compare with one of {kinds[1]}")


def compare_values(
    kernel: Kernel, left: Expression, right: Expression, get_column: GetColumn, rows: int
) -> pa.Array:
    """Return true, false or null for each row.

    Args:
        kernel: Arrow's comparison.
        left: first value.
        right: second value, comparable with the first.
        get_column: returns the values of a column, of length `rows`.
        rows: number of rows.
    """
    try:
        found = kernel(*_operands(left, right, get_column, exact=False))
    except pa.ArrowInvalid:
        found = kernel(*_operands(left, right, get_column, exact=True))
    return pa.repeat(found, rows) if isinstance(found, pa.Scalar) else found


def values_of(expression: Expression, get_column: GetColumn, rows: int) -> pa.Array:
    """Return the values of an expression, of any type that holds them.

    Args:
        expression: the expression.
        get_column: returns the values of a column, of length `rows`.
        rows: number of rows.
    """
    try:
        found = calculate(expression, get_column, exact=False)
    except pa.ArrowInvalid:
        found = calculate(expression, get_column, exact=True)
    return pa.repeat(found, rows) if isinstance(found, pa.Scalar) else found


def _operands(
    left: Expression, right: Expression, get_column: GetColumn, *, exact: bool
) -> list[Value]:
    """Return the values of both sides, of one type."""
    values = [calculate(side, get_column, exact=exact) for side in (left, right)]
    if left.type == right.type and left.type in _MOMENTS:
        return values
    if left.type in _MOMENTS:
        return [_microseconds(value, exact=exact) for value in values]
    if not is_number(left.type):
        return values
    floating = common_float(left, right)
    if floating is not None:
        return [as_type(value, floating) for value in values]
    if not exact and pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return [_narrow(v, o) for v, o in ((values[0], right), (values[1], left))]
    exacts = exact_type(left), exact_type(right)
    assert exacts[0] is not None
    assert exacts[1] is not None
    common = common_decimal(exacts[0], exacts[1])
    wide = pa.types.is_decimal256(common)
    return [
        pc.cast(as_decimal(value, kind, wide=wide), common)
        for value, kind in zip(values, exacts, strict=True)
    ]


def _narrow(value: Value, other: Expression) -> Value:
    """Convert an integer constant to the type of the other side, if it fits: a comparison without a copy."""
    if not isinstance(value, pa.Scalar) or isinstance(other, Constant) or not value.is_valid:
        return value
    bits = other.type.bit_width - 1
    return pc.cast(value, other.type) if -(1 << bits) <= value.as_py() < 1 << bits else value


def _microseconds(value: Value, *, exact: bool) -> Value:
    """Return a date or timestamp as microseconds, also those of a date that no timestamp holds."""
    if value.type != pa.date32():
        number = pc.cast(value, pa.int64())
        return pc.cast(number, pa.decimal128(19, 0)) if exact else number
    days = pc.cast(value, pa.int32())
    if exact:
        return pc.multiply(pc.cast(days, pa.decimal128(10, 0)), pa.scalar(Decimal(DAY_US)))
    return pc.multiply_checked(pc.cast(days, pa.int64()), pa.scalar(DAY_US))
