"""Bounds that a predicate implies for a column or for encoded keys, used for pruning only.

Bounds are exact or too wide, never too narrow: a row that the predicate accepts is within them. Statistics of
floating-point columns must come from blocks without NaN, which is not ordered.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from nyala.common.expressions.patterns import literal_prefix
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
    columns_of_leaf,
    negate,
)
from nyala.common.expressions.tree import ColumnRef
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import encode_prefix, successor
from nyala.common.schema import Column


def comparable(value: pa.Scalar) -> Any:
    """Return a Python value with the column's order (times as integers, for any year)."""
    kind = value.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return value.value
    return value.as_py()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one column in rows that a predicate can accept.

    Attributes:
        lower: lowest value; None: unbounded.
        upper: highest value; None: unbounded.
        lower_inclusive: `lower` itself can be accepted.
        upper_inclusive: `upper` itself can be accepted.
        values: all accepted non-null values, ascending, with `lower` and `upper` as its ends; None: not
            finite.
        nulls: a null can be accepted.
    """

    lower: pa.Scalar | None = None
    upper: pa.Scalar | None = None
    lower_inclusive: bool = True
    upper_inclusive: bool = True
    values: tuple[pa.Scalar, ...] | None = None
    nulls: bool = True

    @property
    def empty(self) -> bool:
        """True if the predicate accepts no row."""
        return self.values == () and not self.nulls

    def may_match(
        self, minimum: pa.Scalar | None, maximum: pa.Scalar | None, *, has_nulls: bool
    ) -> bool:
        """Return whether a block can contain an accepted row.

        Args:
            minimum: lowest non-null value of the block; None: all values are null.
            maximum: highest non-null value of the block; None: all values are null.
            has_nulls: the block has a null in this column.
        """
        if has_nulls and self.nulls:
            return True
        if minimum is None or maximum is None:
            return False
        least, most = comparable(minimum), comparable(maximum)
        if self.values is not None:
            return any(least <= comparable(v) <= most for v in self.values)
        return self._above_lower(most) and self._below_upper(least)

    def holds(self, value: Any) -> bool:
        """Return whether a `comparable` value is within the bounds."""
        return self._above_lower(value) and self._below_upper(value)

    def _above_lower(self, value: Any) -> bool:
        if self.lower is None:
            return True
        lower = comparable(self.lower)
        return bool(value >= lower if self.lower_inclusive else value > lower)

    def _below_upper(self, value: Any) -> bool:
        if self.upper is None:
            return True
        upper = comparable(self.upper)
        return bool(value <= upper if self.upper_inclusive else value < upper)


_NOT_NULL = Bounds(nulls=False)


def bounds(tree: Predicate, column_id: ColumnId) -> Bounds:
    """Return the bounds that a predicate implies for one column."""
    match tree:
        case And(children):
            return _intersect([bounds(c, column_id) for c in children])
        case Or(children):
            return _union([bounds(c, column_id) for c in children])
        case Not(child):
            pushed = negate(child)
            return (
                _negated_leaf(pushed, column_id)
                if isinstance(pushed, Not)
                else bounds(pushed, column_id)
            )
        case Const(value):
            return Bounds() if value else Bounds(values=(), nulls=False)  # of unknown too
        case Compare() | In() | IsNull() | Prefix():
            return _leaf(tree) if tree.column_id == column_id else Bounds()
        case IsNullValue():
            return Bounds()
        case Like(ColumnRef(found), pattern, False) if found == column_id:
            return _leaf(Prefix(found, literal_prefix(pattern)[0]))
        case CompareValues() | Like():  # unknown, if a column is null
            return _NOT_NULL if column_id in columns_of_leaf(tree) else Bounds()


def _negated_leaf(tree: Not, column_id: ColumnId) -> Bounds:
    child = tree.child
    if isinstance(child, CompareValues | IsNullValue | Like):
        return _NOT_NULL if column_id in columns_of_leaf(child) else Bounds()
    assert isinstance(child, Compare | In | IsNull | Prefix), f"not pushed down: {tree}"
    return _NOT_NULL if child.column_id == column_id else Bounds()


def _leaf(tree: Compare | In | IsNull | Prefix) -> Bounds:
    match tree:
        case IsNull():
            return Bounds(values=())
        case In(values=values):
            return _of_values(list(values), nulls=False)
        case Prefix(prefix=prefix):
            end = prefix_end(prefix)
            upper = None if end is None else pa.scalar(end)
            return Bounds(pa.scalar(prefix), upper, upper_inclusive=False, nulls=False)
        case Compare(op=op, value=value):
            if comparable(value) != comparable(value):  # NaN gives no bounds
                return _NOT_NULL
            if op is CompareOp.EQ:
                return _of_values([value], nulls=False)
            if op is CompareOp.NE:
                return _NOT_NULL
            inclusive = op in (CompareOp.LE, CompareOp.GE)
            if op in (CompareOp.LT, CompareOp.LE):
                return Bounds(upper=value, upper_inclusive=inclusive, nulls=False)
            return Bounds(lower=value, lower_inclusive=inclusive, nulls=False)


def prefix_end(prefix: str) -> str | None:
    """Return the lowest string above all with a prefix; None: there is none."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


def _of_values(values: Iterable[pa.Scalar], *, nulls: bool) -> Bounds:
    by_order = {comparable(v): v for v in values}
    kept = tuple(by_order[k] for k in sorted(k for k in by_order if k == k))
    if not kept:
        return Bounds(values=(), nulls=nulls)
    return Bounds(kept[0], kept[-1], values=kept, nulls=nulls)


def _low(part: Bounds) -> tuple[Any, bool]:
    assert part.lower is not None, f"{part}"
    return comparable(part.lower), not part.lower_inclusive


def _high(part: Bounds) -> tuple[Any, bool]:
    assert part.upper is not None, f"{part}"
    return comparable(part.upper), part.upper_inclusive


def _span(low: Bounds | None, high: Bounds | None, nulls: bool) -> Bounds:
    """Return the lower bound of one and the upper bound of another."""
    return Bounds(
        lower=low.lower if low else None,
        upper=high.upper if high else None,
        lower_inclusive=low.lower_inclusive if low else True,
        upper_inclusive=high.upper_inclusive if high else True,
        nulls=nulls,
    )


def _intersect(parts: Sequence[Bounds]) -> Bounds:
    nulls = all(p.nulls for p in parts)
    low = max((p for p in parts if p.lower is not None), key=_low, default=None)
    high = min((p for p in parts if p.upper is not None), key=_high, default=None)
    span = _span(low, high, nulls)
    finite = [p.values for p in parts if p.values is not None]
    if finite:
        kept = {comparable(v): v for v in min(finite, key=len)}
        for values in finite:
            others = {comparable(v) for v in values}
            kept = {k: v for k, v in kept.items() if k in others}
        return _of_values([v for k, v in kept.items() if span.holds(k)], nulls=nulls)
    if low and high:
        least, most = _low(low)[0], _high(high)[0]
        if least > most or (least == most and not span.holds(least)):
            return Bounds(values=(), nulls=nulls)
        if least == most and span.lower is not None:
            return _of_values([span.lower], nulls=nulls)
    return span


def _union(parts: Sequence[Bounds]) -> Bounds:
    nulls = any(p.nulls for p in parts)
    some = [p for p in parts if p.values != ()]
    if all(p.values is not None for p in some):
        return _of_values([v for p in some for v in p.values or ()], nulls=nulls)
    low = None if any(p.lower is None for p in some) else min(some, key=_low)
    high = None if any(p.upper is None for p in some) else max(some, key=_high)
    return _span(low, high, nulls)


@dataclass(frozen=True, slots=True)
class KeyBounds:
    """Bounds of the encoded keys of rows that a predicate can accept.

    Attributes:
        lower: inclusive; b"": unbounded.
        upper: exclusive; None: unbounded.
    """

    lower: bytes = b""
    upper: bytes | None = None

    @property
    def empty(self) -> bool:
        """True if no key can be accepted."""
        return self.upper is not None and self.upper <= self.lower

    def overlaps(self, lower: bytes | None, upper: bytes | None) -> bool:
        """Return whether keys in [lower, upper) can be accepted; None: unbounded."""
        if self.empty:
            return False
        return (upper is None or self.lower < upper) and (
            lower is None or self.upper is None or lower < self.upper
        )


def key_bounds(tree: Predicate, columns: Sequence[Column]) -> KeyBounds:
    """Return the bounds that a predicate implies for encoded keys of these columns."""
    types = [c.type for c in columns]
    equal: list[pa.Scalar] = []
    for column in columns:
        found = bounds(tree, column.id)
        if found.values == ():
            return KeyBounds(b"", b"")
        if found.values is None or len(found.values) > 1:
            return _key_range(equal, found, types)
        equal.append(found.values[0])
    exact = encode_prefix(equal, types)
    return KeyBounds(exact, exact + b"\0")


def _key_range(equal: list[pa.Scalar], last: Bounds, types: list[pa.DataType]) -> KeyBounds:
    prefix = encode_prefix(equal, types)
    lower = prefix if last.lower is None else encode_prefix([*equal, last.lower], types)
    if last.upper is None:
        return KeyBounds(lower, successor(prefix))
    upper = encode_prefix([*equal, last.upper], types)
    if not last.upper_inclusive:
        return KeyBounds(lower, upper)
    final = len(equal) + 1 == len(types)
    return KeyBounds(lower, upper + b"\0" if final else successor(upper))
