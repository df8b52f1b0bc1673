"""Translation of DuckDB's filter on a scan into a predicate, where both have the same meaning.

DuckDB passes a filter as an Arrow expression, which can be printed and compared but not inspected. So its
text is parsed (lists, which are abbreviated in it, from its pickled form), an expression is built from the
result, and the two are compared: a text that was parsed wrongly (names are not quoted in it) never gives an
equal expression, and then nothing is pushed down.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.expressions.predicate import (
    And,
    Compare,
    CompareOp,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
)
from nyala.common.schema import Column, Schema

MAX_DEPTH = 30
"""Maximum depth of a filter that is pushed down; servers accept a little more."""
MAX_LIST_BYTES = 1 << 20
"""Maximum bytes of the values of an `in` that is pushed down; servers accept a few times as much."""
_END_OF_LIST = "\n], null_matching_behavior=MATCH}), null[bool])"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PLAIN = re.compile(r"[^()]+?(?=\))")
_SIGNS: dict[str, tuple[CompareOp, Callable[[pc.Expression, pc.Expression], pc.Expression]]] = {
    "==": (CompareOp.EQ, lambda a, b: a == b),
    "!=": (CompareOp.NE, lambda a, b: a != b),
    "<=": (CompareOp.LE, lambda a, b: a <= b),
    ">=": (CompareOp.GE, lambda a, b: a >= b),
    "<": (CompareOp.LT, lambda a, b: a < b),
    ">": (CompareOp.GT, lambda a, b: a > b),
}


class _Unsupported(Exception):
    """The text of a filter cannot be translated."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A translated part of a filter.

    Attributes:
        expression: built from the parsed text.
        predicate: true for every row for which the filter is true; None: no such predicate.
    """

    expression: pc.Expression
    predicate: Predicate | None


def as_predicate(expression: pc.Expression, schema: Schema) -> Predicate | None:
    """Return a predicate that is true for every row that passes the filter; None: none was found."""
    text = str(expression)
    try:
        reader = _Reader(text, schema, _lists(expression))
        read = reader.parse()
        same = read.expression.equals(expression)
    except (_Unsupported, ValueError, pa.ArrowException):
        return None
    return read.predicate if same else None


def columns_in(expression: pc.Expression, names: Sequence[str]) -> set[str]:
    """Return at least the columns that a filter names."""
    text = str(expression)
    return {name for name in names if name in text}


def _lists(expression: pc.Expression) -> Iterator[pa.Array]:
    """Yield the lists of values in an expression, in the order in which its text has them."""
    _, (pickled,) = expression.__reduce__()
    stored = pa.ipc.open_file(pickled).read_all()
    for column in stored.columns:
        if pa.types.is_struct(column.type) and column.type.get_field_index("value_set") >= 0:
            yield column.chunk(0).field("value_set").flatten()


class _Reader:
    """Parser of the text of one filter."""

    def __init__(self, text: str, schema: Schema, lists: Iterator[pa.Array]) -> None:
        self._text = text
        self._lists = lists
        self._at = 0
        self._columns = sorted(schema.columns, key=lambda c: -len(c.name))

    def parse(self) -> _Read:
        read = self._one(0)
        if self._at != len(self._text):
            raise _Unsupported
        return read

    def _take(self, text: str) -> bool:
        if not self._text.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _expect(self, text: str) -> None:
        if not self._take(text):
            raise _Unsupported

    def _one(self, depth: int) -> _Read:
        if depth > MAX_DEPTH:
            raise _Unsupported
        if self._take("is_valid("):
            column = self._column(")")
            return _Read(pc.field(column.name).is_valid(), Not(IsNull(column.id)))
        if self._take("is_null("):
            column = self._column(", {nan_is_null=false})")
            return _Read(pc.field(column.name).is_null(), IsNull(column.id))
        if self._take("if_else(is_valid("):
            return self._in()
        if self._take("invert("):
            read = self._one(depth + 1)
            self._expect(")")
            return _Read(~read.expression, None)
        self._expect("(")
        return self._compared() or self._joined(depth + 1)

    def _joined(self, depth: int) -> _Read:
        left = self._one(depth)
        both = self._take(" and ")
        if not both:
            self._expect(" or ")
        right = self._one(depth)
        self._expect(")")
        if both:
            return _Read(left.expression & right.expression, _and(left, right))
        return _Read(left.expression | right.expression, _or(left, right))

    def _compared(self) -> _Read | None:
        began = self._at
        for column in self._columns:
            self._at = began
            if self._take(column.name + " "):
                for sign, (op, build) in _SIGNS.items():
                    if self._take(sign + " "):
                        value = _value(self._literal(), column.type)
                        self._expect(")")
                        predicates = (
                            None
                            if pa.types.is_floating(column.type)
                            else Compare(column.id, op, value)
                        )
                        return _Read(build(pc.field(column.name), pc.scalar(value)), predicates)
        self._at = began
        return None

    def _in(self) -> _Read:
        """Read `x in (...)`: unknown where x is null."""
        column = self._column("), is_in(")
        self._expect(f"{column.name}, {{value_set={column.type}:[\n  ")
        end = self._text.find(_END_OF_LIST, self._at)
        made = next(self._lists, None)
        if end < 0 or made is None:
            raise _Unsupported
        self._at = end + len(_END_OF_LIST)
        field, unknown = pc.field(column.name), pc.scalar(pa.scalar(None, pa.bool_()))
        expression = pc.if_else(field.is_valid(), field.isin(made), unknown)
        fits = not pa.types.is_floating(column.type) and made.nbytes <= MAX_LIST_BYTES
        return _Read(expression, In(column.id, made) if fits and not made.null_count else None)

    def _column(self, after: str) -> Column:
        for column in self._columns:
            if self._take(column.name + after):
                return column
        raise _Unsupported

    def _literal(self) -> str:
        string = _STRING.match(self._text, self._at)
        found = string or _PLAIN.match(self._text, self._at)
        if found is None:
            raise _Unsupported
        self._at = found.end()
        return str(json.loads(found[0], strict=False)) if string else found[0]


def _value(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_binary(kind):
        return pa.scalar(bytes.fromhex(text), kind)
    return pa.array([text]).cast(kind)[0]


def _and(left: _Read, right: _Read) -> Predicate | None:
    """Combine two sides; one that cannot be expressed is left out, and DuckDB filters more rows."""
    predicates = [r.predicate for r in (left, right) if r.predicate is not None]
    parts = [c for p in predicates for c in (p.children if isinstance(p, And) else (p,))]
    return And(tuple(parts)) if len(parts) > 1 else (parts[0] if parts else None)


def _or(left: _Read, right: _Read) -> Predicate | None:
    predicates = [left.predicate, right.predicate]
    parts: list[Predicate] = []
    for one in predicates:
        if one is None:
            return None
        parts.extend(one.children if isinstance(one, Or) else (one,))
    return Or(tuple(parts))
