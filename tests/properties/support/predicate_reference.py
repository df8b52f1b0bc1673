"""Reference evaluation of a predicate on one row in plain Python, in SQL's three-valued logic."""

import math
import operator
import re
from collections.abc import Mapping
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from nyala.common.expressions.bounds import comparable
from nyala.common.expressions.predicate import (
    And,
    Compare,
    CompareOp,
    CompareValues,
    Const,
    In,
    IsNull,
    IsNullValue,
    Like,
    Not,
    Or,
    Predicate,
    Prefix,
)
from nyala.common.expressions.tree import Arithmetic, ColumnRef, Constant, Expression, Operator
from nyala.common.ids import ColumnId

SIGNS = {
    CompareOp.EQ: operator.eq, CompareOp.NE: operator.ne, CompareOp.LT: operator.lt,
    CompareOp.LE: operator.le, CompareOp.GT: operator.gt, CompareOp.GE: operator.ge,
}  # fmt: skip


def evaluate_reference(tree: Predicate, row: Mapping[ColumnId, Any]) -> bool | None:
    """Evaluate a tree on one row (cells by column id) by the rules of SQL: True, False or None."""
    match tree:
        case And(children):
            found = [evaluate_reference(c, row) for c in children]
            return False if False in found else None if None in found else True
        case Or(children):
            found = [evaluate_reference(c, row) for c in children]
            return True if True in found else None if None in found else False
        case Not(child):
            one = evaluate_reference(child, row)
            return None if one is None else not one
        case Const(value):
            return value
        case CompareValues(op, left, right):
            return compare_reference(op, left, right, row)
        case IsNullValue(value):
            return value_of(value, row) is None
        case Like(value, pattern, ignore_case):
            text = value_of(value, row)
            return None if text is None else like(text, pattern, ignore_case)
    cell = row[tree.column_id]
    if isinstance(tree, IsNull):
        return cell is None
    if cell is None:
        return None
    match tree:
        case Compare(op=op, value=literal) if isinstance(cell, date):  # literals of any year
            cells = pa.scalar(cell, literal.type)
            return bool(SIGNS[op](comparable(cells), comparable(literal)))
        case Compare(op=op, value=literal):
            return bool(SIGNS[op](cell, literal.as_py()))
        case In(values=literals):
            return any(cell == v for v in literals.to_pylist())
        case Prefix(prefix=prefix):
            return bool(cell.startswith(prefix))


def like(text: str, pattern: str, ignore_case: bool) -> bool:
    """Match a text with a pattern."""
    if ignore_case:
        text, pattern = (
            "".join(c.lower()[0] if c.lower() else c for c in t) for t in (text, pattern)
        )
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    found = {"%": ".*", "_": "."}
    regex = "".join(found.get(p) or re.escape(p[-1]) for p in parts)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def compare_reference(
    op: CompareOp, left: Expression, right: Expression, row: Mapping[ColumnId, Any]
) -> bool | None:
    """Compare two values: exactly, or in the wider floating-point type."""
    values = value_of(left, row), value_of(right, row)
    if None in values:
        return None
    if isinstance(values[0], date) and left.type != right.type:
        return bool(SIGNS[op](*(moment(v) for v in values)))
    if float in map(type, values):
        single = {left.type, right.type} >= {pa.float32()} and pa.float64() not in (
            left.type,
            right.type,
        )
        return bool(SIGNS[op](*(as_float(v, single) for v in values)))
    return bool(SIGNS[op](*values))


def moment(value: Any) -> datetime:
    """Return a date as its midnight."""
    return value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)


def as_float(value: Any, single: bool) -> float:
    """Convert a number to double, or to float."""
    made = float(value)
    with np.errstate(over="ignore"):
        return float(np.float32(made)) if single else made


def value_of(node: Expression, row: Mapping[ColumnId, Any]) -> Any:
    """Evaluate a value on one row; numbers are Fraction, if exact, or float."""
    match node:
        case ColumnRef(column_id):
            return plain(row[column_id])
        case Constant(value):
            return plain(value.as_py())
        case Arithmetic(op, left, right, kind):
            first, second = value_of(left, row), value_of(right, row)
            if first is None or second is None:
                return None
            if op is Operator.CONCAT:
                return first + second
            if pa.types.is_floating(kind):
                single = kind == pa.float32()
                sides = as_float(first, single), as_float(second, single)
                made = _operated(op, *sides)
                return None if made is None else as_float(made, single)
            return _operated(op, first, second)


def plain(value: Any) -> Any:
    """Return integers and decimals as Fraction, other values as they are."""
    exact = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return Fraction(value) if exact else value


def _operated(op: Operator, left: Any, right: Any) -> Any:
    if op in (Operator.DIVIDE, Operator.MODULO) and right == 0:
        return None
    match op:
        case Operator.ADD:
            return left + right
        case Operator.SUBTRACT:
            return left - right
        case Operator.MULTIPLY:
            return left * right
        case Operator.DIVIDE:
            return left / right
    if isinstance(left, float):
        return math.nan if math.isinf(left) else math.fmod(left, right)
    return left - right * math.trunc(left / right)
