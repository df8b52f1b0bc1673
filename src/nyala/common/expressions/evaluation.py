"""Evaluation of value expressions with Arrow's kernels; nothing here looks at a row from Python.

Integers are calculated with 64 bits; if one overflows, the whole expression is calculated again with
decimals, which hold every result. A division or modulo by zero gives null, also for floating point.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.tree import (
    MAX_STORED_DIGITS,
    Arithmetic,
    ColumnRef,
    Constant,
    Expression,
    Operator,
    decimal_type,
    exact_type,
)
from nyala.common.ids import ColumnId

GetColumn = Callable[[ColumnId], pa.Array]
Value: TypeAlias = Any
"""An Arrow array, chunked array or scalar."""
_CHECKED = {
    Operator.ADD: pc.add_checked,
    Operator.SUBTRACT: pc.subtract_checked,
    Operator.MULTIPLY: pc.multiply_checked,
}
_FLOATING = {
    Operator.ADD: pc.add,
    Operator.SUBTRACT: pc.subtract,
    Operator.MULTIPLY: pc.multiply,
    Operator.DIVIDE: pc.divide,
}


def result_type(expression: Expression) -> pa.DataType:
    """Return the type of the values of an expression, a type that a column can have, or null.

    Raises:
        InvalidArgument: a decimal with more digits after the point than a column can have.
    """
    kind = expression.type
    if not pa.types.is_decimal(kind) or kind.precision <= MAX_STORED_DIGITS:
        return kind
    if kind.scale > MAX_STORED_DIGITS:
        raise InvalidArgument(
            f"a result has {kind.scale} digits after the point, and a decimal has at most "
            f"{MAX_STORED_DIGITS} digits; multiply by 1e0 to calculate with double"
        )
    return pa.decimal128(MAX_STORED_DIGITS, kind.scale)


def evaluate_value(expression: Expression, get_column: GetColumn, rows: int) -> pa.Array:
    """Return the values of an expression, of its `result_type`.

    Args:
        expression: the expression.
        get_column: returns the values of a column, of length `rows`; called once per reference.
        rows: number of rows.

    Raises:
        InvalidArgument: a result is outside the range of `result_type`.
    """
    kind = result_type(expression)
    try:
        found = calculate(expression, get_column, exact=False)
    except pa.ArrowInvalid:
        found = calculate(expression, get_column, exact=True)
    if found.type != kind:
        found = _narrowed(found, kind)
    if isinstance(found, pa.Scalar):
        return pa.repeat(found, rows)
    if isinstance(found, pa.ChunkedArray):
        found = found.combine_chunks()
    assert len(found) == rows, f"{len(found)} values for {rows} rows"
    return found


def _narrowed(found: Value, kind: pa.DataType) -> Value:
    try:
        return found.cast(kind)
    except pa.ArrowInvalid as err:
        raise InvalidArgument(
            f"a result is outside the range of {kind}; multiply by 1e0 to calculate with double"
        ) from err


def calculate(node: Expression, get_column: GetColumn, *, exact: bool) -> Value:
    """Return the values of a node; a scalar, if it reads no column.

    Args:
        node: the expression.
        get_column: returns the values of a column.
        exact: calculate integers as decimals; a result may be a decimal then.

    Raises:
        pa.ArrowInvalid: not `exact`, and an integer overflows.
    """
    match node:
        case ColumnRef(column_id):
            return get_column(column_id)
        case Constant(value):
            return value
        case Arithmetic(op, left, right):
            first = calculate(left, get_column, exact=exact)
            second = calculate(right, get_column, exact=exact)
            if op is Operator.CONCAT:
                return pc.binary_join_element_wise(first, second, pa.scalar("", pa.string()))
            if node.exact is None:
                return _floating(op, as_type(first, node.type), as_type(second, node.type))
            if pa.types.is_integer(node.type) and not exact:
                return _integers(op, as_type(first, pa.int64()), as_type(second, pa.int64()))
            sides = [
                as_decimal(value, exact_type(side), wide=node.exact.precision > MAX_STORED_DIGITS)
                for value, side in ((first, left), (second, right))
            ]
            return _decimals(op, sides[0], sides[1])


def as_type(value: Value, kind: pa.DataType) -> Value:
    """Convert numbers to int64, float or double; to a floating-point type with rounding."""
    if value.type == kind:
        return value
    if isinstance(value, pa.Scalar) and pa.types.is_decimal(value.type) and value.is_valid:
        return pa.scalar(float(value.as_py()), pa.float64()).cast(kind)  # rounded once
    return pc.cast(value, kind, safe=not pa.types.is_floating(kind))


def as_decimal(value: Value, kind: pa.DataType | None, *, wide: bool) -> Value:
    """Convert integers and decimals to a decimal.

    Args:
        value: the numbers.
        kind: exact type of their expression.
        wide: to 256 bits.
    """
    assert kind is not None, f"{value.type} is not exact"
    if pa.types.is_integer(value.type):
        if isinstance(value, pa.Scalar):
            number = value.as_py()
            value = pa.scalar(None if number is None else Decimal(number), kind)
        else:
            value = pc.cast(value, pa.decimal128(19, 0))
            value = pc.cast(value, kind) if kind.precision < 19 else value
    found = value.type
    return pc.cast(value, pa.decimal256(found.precision, found.scale)) if wide else value


def _without_zero(divisor: Value) -> Value:
    zero = Decimal(0) if pa.types.is_decimal(divisor.type) else 0
    is_zero = pc.equal(divisor, pa.scalar(zero, divisor.type))
    return pc.if_else(is_zero, pa.scalar(None, divisor.type), divisor)


def _floating(op: Operator, left: Value, right: Value) -> Value:
    if op is Operator.MODULO:
        return pc.call_function("remainder", [left, _without_zero(right)])
    return _FLOATING[op](left, _without_zero(right) if op is Operator.DIVIDE else right)


def _integers(op: Operator, left: Value, right: Value) -> Value:
    if op is Operator.MODULO:  # the processor cannot divide the lowest number by -1
        divisor = pc.if_else(pc.equal(right, pa.scalar(-1)), pa.scalar(1), _without_zero(right))
        return pc.call_function("remainder", [left, divisor])
    return _CHECKED[op](left, right)


def _decimals(op: Operator, left: Value, right: Value) -> Value:
    if op is not Operator.MODULO:
        return _FLOATING[op](left, right)
    scale = max(left.type.scale, right.type.scale)
    digits = max(v.type.precision - v.type.scale for v in (left, right)) + scale
    kind = decimal_type(digits, scale)
    return pc.call_function("remainder", [pc.cast(left, kind), _without_zero(pc.cast(right, kind))])


def columns_in(expression: Expression) -> set[ColumnId]:
    """Return the ids of the columns that an expression reads."""
    match expression:
        case ColumnRef(column_id):
            return {column_id}
        case Constant():
            return set()
        case Arithmetic(left=left, right=right):
            return columns_in(left) | columns_in(right)
