"""Value expressions: trees of columns, constants and arithmetic, each node with its type.

Arithmetic of integers and decimals is exact: its nodes have an exact type too, a decimal that holds every
result. `/` gives double; with float operands and no double, float. Any operand that is null gives null.
"""

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ColumnId

MAX_LEVELS = 100
"""Maximum depth of an expression."""
MAX_DIGITS = 76
"""Maximum digits of an exact result, as Arrow's decimals have them."""
MAX_STORED_DIGITS = 38
_STRING, _INT64, _NULL = pa.string(), pa.int64(), pa.null()
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 19}


class Operator(Enum):
    """Operation on two values; the value is its sign in SQL."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "/"
    MODULO = "%"
    CONCAT = "||"


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """Value of a column.

    Attributes:
        column_id: id of the column.
        type: stored type of the column.
    """

    column_id: ColumnId
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class Constant:
    """One value for all rows, which may be null; a null without a type has Arrow's null type."""

    value: pa.Scalar

    @property
    def type(self) -> pa.DataType:
        """Type of the value."""
        return self.value.type


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Operation on two values; made by `arithmetic`, which checks the types.

    Attributes:
        op: the operation.
        left: first operand.
        right: second operand.
        type: type of the result: int64, decimal, float, double or string.
        exact: decimal type that holds every result, for integers and decimals; else None.
        levels: depth of the tree.
    """

    op: Operator
    left: "Expression"
    right: "Expression"
    type: pa.DataType
    exact: pa.DataType | None
    levels: int


Expression = ColumnRef | Constant | Arithmetic


@lru_cache(256)
def is_number(kind: pa.DataType) -> bool:
    """Return whether arithmetic can be done with a type."""
    types = pa.types
    return bool(types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind))


def decimal_type(digits: int, scale: int) -> pa.DataType:
    """Return the narrower of Arrow's decimal types that has so many digits, at most MAX_DIGITS."""
    wide = digits > MAX_STORED_DIGITS
    return pa.decimal256(digits, scale) if wide else pa.decimal128(digits, scale)


def exact_type(node: Expression) -> pa.DataType | None:
    """Return the decimal type that holds every value of a node; None: it is neither integer nor decimal."""
    if isinstance(node, Arithmetic):
        return node.exact
    if isinstance(node, Constant) and pa.types.is_integer(node.type):
        return pa.decimal128(len(str(abs(node.value.as_py() or 0))), 0)
    return _exact_of(node.type)


@lru_cache(256)
def _exact_of(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_integer(kind):
        return pa.decimal128(_INTEGER_DIGITS[kind.bit_width], 0)
    return kind if pa.types.is_decimal(kind) else None


def levels_of(node: Expression) -> int:
    """Return the depth of a tree."""
    return node.levels if isinstance(node, Arithmetic) else 1


def arithmetic(op: Operator, left: Expression, right: Expression) -> Arithmetic:
    """Return an operation on two values.

    Args:
        op: the operation.
        left: first operand.
        right: second operand.

    Raises:
        InvalidArgument: operands of wrong types, a result that no type holds, a tree that is too deep.
    """
    levels = 1 + max(levels_of(left), levels_of(right))
    if levels > MAX_LEVELS:
        raise InvalidArgument(
            f"an expression has at most {MAX_LEVELS - 1} operators on one path; simplify it"
        )
    default = _STRING if op is Operator.CONCAT else _INT64
    left, right = _typed(left, default), _typed(right, default)
    for node in (left, right):
        if op is Operator.CONCAT and node.type != _STRING:
            raise InvalidArgument(f"|| joins strings; {described(node)} has type {node.type}")
        if op is not Operator.CONCAT and not is_number(node.type):
            raise InvalidArgument(
                f"{op.value} takes numbers; {described(node)} has type {node.type}"
            )
    exacts = exact_type(left), exact_type(right)
    return Arithmetic(op, left, right, *_result(op, left.type, right.type, *exacts), levels)


@lru_cache(4096)
def _result(
    op: Operator,
    left: pa.DataType,
    right: pa.DataType,
    left_exact: pa.DataType | None,
    right_exact: pa.DataType | None,
) -> tuple[pa.DataType, pa.DataType | None]:
    """Return the type and the exact type of a result."""
    if op is Operator.CONCAT:
        return _STRING, None
    if op is Operator.DIVIDE or left_exact is None or right_exact is None:
        return _float_type(left, right), None
    exact = _exact_result(op, left_exact, right_exact)
    both = pa.types.is_integer(left) and pa.types.is_integer(right)
    return _INT64 if both else exact, exact


def described(node: Expression) -> str:
    """Return a name of a node for errors."""
    if isinstance(node, ColumnRef):
        return "the column"
    return "the literal" if isinstance(node, Constant) else f"the result of {node.op.value}"


def _typed(node: Expression, default: pa.DataType) -> Expression:
    untyped = isinstance(node, Constant) and node.type == _NULL
    return Constant(pa.scalar(None, default)) if untyped else node


def _float_type(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the floating-point type of an operation: float if there is a float and no double."""
    kinds = {left, right}
    return pa.float32() if pa.float32() in kinds and pa.float64() not in kinds else pa.float64()


def common_float(left: Expression, right: Expression) -> pa.DataType | None:
    """Return the floating-point type in which two numbers are compared; None: they are compared exactly."""
    if exact_type(left) is not None and exact_type(right) is not None:
        return None
    return _float_type(left.type, right.type)


def common_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds the values of two.

    Raises:
        InvalidArgument: there is none.
    """
    scale = max(left.scale, right.scale)
    return _checked(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def _exact_result(op: Operator, left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if op is Operator.MULTIPLY:
        return _checked(left.precision + right.precision + 1, left.scale + right.scale)
    both = common_decimal(left, right)
    more = 0 if op is Operator.MODULO else 1
    return _checked(both.precision + more, both.scale)


def _checked(digits: int, scale: int) -> pa.DataType:
    if digits > MAX_DIGITS:
        raise InvalidArgument(
            f"a result can have {digits} digits, and exact arithmetic has {MAX_DIGITS}; multiply by 1e0 "
            "to calculate with double"
        )
    return decimal_type(digits, scale)
