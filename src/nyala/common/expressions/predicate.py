"""Predicates: trees over column ids that scans push down, evaluated in three-valued logic.

As in SQL, a comparison with null is unknown, and a filter keeps the rows for which the predicate is true. NaN
equals nothing and is not ordered, as in IEEE 754. `where.py` parses text; `bounds.py` derives bounds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.expressions.comparison import compare_values, values_of
from nyala.common.expressions.evaluation import columns_in
from nyala.common.expressions.tree import Expression
from nyala.common.ids import ColumnId


class CompareOp(Enum):
    """Comparison of a column with a literal; the value is the SQL operator."""

    EQ = "="
    NE = "<>"
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


NEGATED = {
    CompareOp.EQ: CompareOp.NE,
    CompareOp.NE: CompareOp.EQ,
    CompareOp.LT: CompareOp.GE,
    CompareOp.GE: CompareOp.LT,
    CompareOp.GT: CompareOp.LE,
    CompareOp.LE: CompareOp.GT,
}
"""Negation of each comparison (not valid for floating point, because of NaN)."""

_KERNELS: dict[CompareOp, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    CompareOp.EQ: pc.equal,
    CompareOp.NE: pc.not_equal,
    CompareOp.LT: pc.less,
    CompareOp.LE: pc.less_equal,
    CompareOp.GT: pc.greater,
    CompareOp.GE: pc.greater_equal,
}


@dataclass(frozen=True, slots=True)
class And:
    """True if all children are true; at least two children."""

    children: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """True if any child is true; at least two children."""

    children: tuple["Predicate", ...]


@dataclass(frozen=True, slots=True)
class Not:
    """True if the child is false; unknown stays unknown."""

    child: "Predicate"


@dataclass(frozen=True, slots=True)
class Compare:
    """Comparison of a column with a non-null literal of the column's type."""

    column_id: ColumnId
    op: CompareOp
    value: pa.Scalar

    def __post_init__(self) -> None:
        assert self.value.is_valid, f"column {self.column_id} {self.op.value} null"


@dataclass(frozen=True, slots=True)
class In:
    """True if the column equals one of the values, an array of the column's type without nulls."""

    column_id: ColumnId
    values: pa.Array

    def __post_init__(self) -> None:
        assert self.values.null_count == 0, f"null in the list for column {self.column_id}"


@dataclass(frozen=True, slots=True)
class IsNull:
    """True if the column is null; never unknown."""

    column_id: ColumnId


@dataclass(frozen=True, slots=True)
class Prefix:
    """True if a string column begins with `prefix`."""

    column_id: ColumnId
    prefix: str


@dataclass(frozen=True, slots=True)
class CompareValues:
    """Comparison of any two values that `check_comparable` accepts."""

    op: CompareOp
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class IsNullValue:
    """True if a value is null; never unknown."""

    value: Expression


@dataclass(frozen=True, slots=True)
class Like:
    """True if a string matches a pattern.

    Attributes:
        value: a string.
        pattern: `%` is any text, `_` any character, and a backslash precedes one that is itself meant.
        ignore_case: compare both in lower case.
    """

    value: Expression
    pattern: str
    ignore_case: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """True, false or unknown (None) for every row."""

    value: bool | None


Predicate = (
    And | Or | Not | Compare | In | IsNull | Prefix | CompareValues | IsNullValue | Like | Const
)
TRUE = Const(True)
FALSE = Const(False)
UNKNOWN = Const(None)


def all_of(trees: Iterable[Predicate]) -> Predicate:
    """Return the conjunction, flattened and without constants; true if there are no trees."""
    children: list[Predicate] = []
    for tree in trees:
        children.extend(tree.children if isinstance(tree, And) else (tree,))
    kept = [c for c in children if c != TRUE]
    if FALSE in kept:
        return FALSE
    if len(kept) > 1:
        return And(tuple(kept))
    return kept[0] if kept else TRUE


def any_of(trees: Iterable[Predicate]) -> Predicate:
    """Return the disjunction, flattened and without constants; false if there are no trees."""
    children: list[Predicate] = []
    for tree in trees:
        children.extend(tree.children if isinstance(tree, Or) else (tree,))
    kept = [c for c in children if c != FALSE]
    if TRUE in kept:
        return TRUE
    if len(kept) > 1:
        return Or(tuple(kept))
    return kept[0] if kept else FALSE


def negate(tree: Predicate) -> Predicate:
    """Return the negation, with `not` pushed down to the leaves."""
    match tree:
        case And(children):
            return any_of(negate(c) for c in children)
        case Or(children):
            return all_of(negate(c) for c in children)
        case Not(child):
            return push_down(child)
        case Const(value):
            return Const(None if value is None else not value)
        case Compare(column_id, op, value) if not _is_order_of_floats(op, value):
            return Compare(column_id, NEGATED[op], value)
        case _:
            return Not(tree)


def push_down(tree: Predicate) -> Predicate:
    """Return an equivalent predicate with `not` at leaves only, flattened and without constants."""
    match tree:
        case And(children):
            return all_of(push_down(c) for c in children)
        case Or(children):
            return any_of(push_down(c) for c in children)
        case Not(child):
            return negate(child)
        case _:
            return tree


def _is_order_of_floats(op: CompareOp, value: pa.Scalar) -> bool:
    return op not in (CompareOp.EQ, CompareOp.NE) and pa.types.is_floating(value.type)


def columns_of(tree: Predicate) -> tuple[ColumnId, ...]:
    """Return the ids of the columns that a predicate reads, ascending."""
    found: dict[ColumnId, None] = {}
    _collect(tree, found)
    return tuple(sorted(found))


def _collect(tree: Predicate, found: dict[ColumnId, None]) -> None:
    match tree:
        case And(children) | Or(children):
            for child in children:
                _collect(child, found)
        case Not(child):
            _collect(child, found)
        case Const():
            pass
        case Compare() | In() | IsNull() | Prefix():
            found[tree.column_id] = None
        case CompareValues() | IsNullValue() | Like():
            found.update(dict.fromkeys(columns_of_leaf(tree)))


def columns_of_leaf(tree: CompareValues | IsNullValue | Like) -> set[ColumnId]:
    """Return the ids of the columns that a condition on values reads."""
    if isinstance(tree, CompareValues):
        return columns_in(tree.left) | columns_in(tree.right)
    return columns_in(tree.value)


def evaluate(
    tree: Predicate, get_column: Callable[[ColumnId], pa.Array], rows: int
) -> pa.BooleanArray:
    """Return true, false or null (unknown) for each row.

    Args:
        tree: predicate with literals of the columns' stored types.
        get_column: returns the values of a column, of length `rows`; called once per leaf.
        rows: number of rows.
    """
    result = _evaluate(tree, get_column, rows)
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    assert len(result) == rows, f"{len(result)} truth values for {rows} rows"
    return result


def _evaluate(tree: Predicate, get: Callable[[ColumnId], pa.Array], rows: int) -> pa.Array:
    match tree:
        case And(children):
            return reduce(pc.and_kleene, (_evaluate(c, get, rows) for c in children))
        case Or(children):
            return reduce(pc.or_kleene, (_evaluate(c, get, rows) for c in children))
        case Not(child):
            return pc.invert(_evaluate(child, get, rows))
        case Compare(column_id, op, value):
            return _KERNELS[op](get(column_id), value)
        case In(column_id, values):
            return _is_in(get(column_id), values)
        case IsNull(column_id):
            return pc.is_null(get(column_id))
        case Prefix(column_id, prefix):
            return pc.starts_with(get(column_id), pattern=prefix)
        case CompareValues(op, left, right):
            return compare_values(_KERNELS[op], left, right, get, rows)
        case IsNullValue(value):
            return pc.is_null(values_of(value, get, rows))
        case Like(value, pattern, ignore_case):
            return _matches(values_of(value, get, rows), pattern, ignore_case)
        case Const(truth):
            return pa.repeat(pa.scalar(truth, pa.bool_()), rows)


def _matches(strings: pa.Array, pattern: str, ignore_case: bool) -> pa.Array:
    if ignore_case:  # as DuckDB; the comparison without case of regular expressions accepts more
        strings, pattern = pc.utf8_lower(strings), pc.utf8_lower(pattern).as_py()
    return pc.match_like(strings, pattern=pattern)


def _is_in(column: pa.Array, values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):  # as for `=`: NaN is in no list, 0.0 equals -0.0
        values = values.filter(pc.invert(pc.is_nan(values)))
        if pc.any(pc.equal(values, pa.scalar(0.0, values.type))).as_py():
            zeros = pa.array([0.0, -0.0], values.type)
            values = pa.concat_arrays([values, zeros])
    found = pc.is_in(column, value_set=values)
    if column.null_count == 0:
        return found
    return pc.if_else(pc.is_valid(column), found, pa.scalar(None, pa.bool_()))
