"""Translation of conditions of Spark's optimised plans into `where` text, where both mean the same.

Only comparisons of a column with a constant are translated, by `spark/filters.py`, and their combinations
by `and`, `or` and `not`. What is not translated stays with Spark, which evaluates the whole condition in any
case.
"""

import struct
from collections.abc import Collection, Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyspark.sql import datasource as ds

from nyala.spark.filters import as_where

_EPOCH = datetime(1970, 1, 1)
_COMPARISONS = {
    "EqualTo": ds.EqualTo,
    "EqualNullSafe": ds.EqualNullSafe,
    "LessThan": ds.LessThan,
    "LessThanOrEqual": ds.LessThanOrEqual,
    "GreaterThan": ds.GreaterThan,
    "GreaterThanOrEqual": ds.GreaterThanOrEqual,
}
_MIRRORED = {
    "LessThan": "GreaterThan",
    "LessThanOrEqual": "GreaterThanOrEqual",
    "GreaterThan": "LessThan",
    "GreaterThanOrEqual": "LessThanOrEqual",
}
_PARTS = {
    "StartsWith": ds.StringStartsWith,
    "EndsWith": ds.StringEndsWith,
    "Contains": ds.StringContains,
}
MAX_IN = 1_000
"""Maximum number of values of a list; each is fetched from Spark by itself."""


class Untranslatable(Exception):
    """A condition or a constant without an exact translation."""


def where_of(condition: Any, floats: Collection[str]) -> str | None:
    """Return text that is true for every row for which a condition is true.

    Args:
        condition: expression of Catalyst; conjuncts without a translation are left out.
        floats: names of the columns of type float or double.

    Returns:
        The text, in parentheses; None: every row.
    """
    texts = []
    for conjunct in _conjuncts(condition):
        try:
            texts.append(_exact(conjunct, floats))
        except Untranslatable:
            continue
    return f"({' and '.join(texts)})" if texts else None


def _conjuncts(expression: Any) -> Iterator[Any]:
    if _kind(expression) == "And":
        yield from _conjuncts(expression.left())
        yield from _conjuncts(expression.right())
    else:
        yield expression


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _exact(expression: Any, floats: Collection[str]) -> str:
    """Return text with the value of an expression for every row.

    Raises:
        Untranslatable: there is none.
    """
    kind = _kind(expression)
    if kind in ("And", "Or"):
        left, right = _exact(expression.left(), floats), _exact(expression.right(), floats)
        return f"({left} {kind.lower()} {right})"
    comparison = _filter(expression, kind)
    text = as_where(comparison, floats)
    if text is None:
        raise Untranslatable
    return text


def _filter(expression: Any, kind: str) -> ds.Filter:
    """Return a comparison as a filter of PySpark."""
    if kind == "Not":
        child = expression.child()
        return ds.Not(_filter(child, _kind(child)))
    if kind in _COMPARISONS:
        left, right = expression.left(), expression.right()
        if _kind(left) == "Literal":
            left, right, kind = right, left, _MIRRORED.get(kind, kind)
        return _COMPARISONS[kind](_column(left), _constant(right))
    if kind in _PARTS:
        return _PARTS[kind](_column(expression.left()), _constant(expression.right()))
    if kind in ("IsNull", "IsNotNull"):
        return getattr(ds, kind)(_column(expression.child()))
    if kind == "In":
        values = expression.list()
        column = _column(expression.value())
        return ds.In(column, tuple(_constant(values.apply(n)) for n in _few(values.size())))
    if kind == "InSet":
        child, found = expression.child(), expression.hset().iterator()
        _few(expression.hset().size())
        values = []
        while found.hasNext():
            values.append(_value(found.next(), child.dataType().catalogString()))
        return ds.In(_column(child), tuple(values))
    if kind == "AttributeReference" and expression.dataType().catalogString() == "boolean":
        return ds.EqualTo(_column(expression), True)
    raise Untranslatable


def _few(count: int) -> range:
    if count > MAX_IN:
        raise Untranslatable
    return range(count)


def _column(expression: Any) -> tuple[str, ...]:
    if _kind(expression) != "AttributeReference":
        raise Untranslatable
    return (str(expression.name()),)


def _constant(expression: Any) -> Any:
    if _kind(expression) != "Literal":
        raise Untranslatable
    return _value(expression.value(), expression.dataType().catalogString())


def _value(value: Any, kind: str) -> Any:
    """Return a constant of Spark as a Python value.

    Args:
        value: as Catalyst has it.
        kind: its type, as in SQL.
    """
    if value is None or kind in ("boolean", "tinyint", "smallint", "int", "bigint", "double"):
        return value
    if kind == "float":  # py4j gives its shortest decimal text, which is another double
        return struct.unpack("f", struct.pack("f", value))[0]
    if kind == "string":
        return str(value.toString())
    if kind == "binary":
        return bytes(value)
    if kind.startswith("decimal("):
        return value.toJavaBigDecimal()
    try:
        if kind == "date":
            return date(1970, 1, 1) + timedelta(days=value)
        if kind == "timestamp_ntz":
            return _EPOCH + timedelta(microseconds=value)
        if kind == "timestamp":
            return _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=value)
    except OverflowError as err:
        raise Untranslatable from err
    raise Untranslatable
