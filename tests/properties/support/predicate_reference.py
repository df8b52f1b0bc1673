"""Reference evaluation of a predicate on one row in plain Python, in SQL's three-valued logic."""

import operator
from collections.abc import Mapping
from typing import Any

from nyala.common.ids import ColumnId
from nyala.common.predicate import (
    And,
    Compare,
    CompareOp,
    Const,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    Prefix,
)

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
    cell = row[tree.column_id]
    if isinstance(tree, IsNull):
        return cell is None
    if cell is None:
        return None
    match tree:
        case Compare(op=op, value=literal):
            return bool(SIGNS[op](cell, literal.as_py()))
        case In(values=literals):
            return any(cell == v for v in literals.to_pylist())
        case Prefix(prefix=prefix):
            return bool(cell.startswith(prefix))
