"""Translation of Spark's filters into `where` expressions, where both have exactly the same meaning.

Floats: to Spark NaN is greater than every number and equals itself; to `where`, as to IEEE, a comparison
with NaN is false. So of the filters on float and double columns only `=`, `<` and `<=` with a finite
number are translated, not negated, where NaN fails on both sides, and tests for null.
"""

import math
from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from nyala.common.expressions.patterns import MAX_PATTERN
from nyala.common.expressions.where import MAX_LIST
from nyala.common.expressions.where_tokens import quoted_name, quoted_text

_SIGNS: Mapping[type, str] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}
_ON_FLOATS = (EqualTo, LessThan, LessThanOrEqual, IsNull, IsNotNull)


def as_where(offered: Filter, floats: Collection[str] = ()) -> str | None:
    """Return a filter as `where` text, or None if there is no exact translation.

    Args:
        offered: filter that Spark offers to push down.
        floats: names of the columns of type float or double.
    """
    if isinstance(offered, Not):
        path: tuple[str, ...] = getattr(offered.child, "attribute", ())
        on_nulls = isinstance(offered.child, IsNull | IsNotNull)
        if any(name in floats for name in path) and not on_nulls:
            return None
        inner = as_where(offered.child, floats)
        return None if inner is None else f"(not {inner})"
    path = getattr(offered, "attribute", ())
    if len(path) != 1:
        return None  # a field within a struct: there are none
    if path[0] in floats and not isinstance(offered, _ON_FLOATS):
        return None
    column = quoted_name(path[0])
    if isinstance(offered, IsNull):
        return f"({column} is null)"
    if isinstance(offered, IsNotNull):
        return f"({column} is not null)"
    if isinstance(offered, In):
        values = ["null" if v is None else literal(v) for v in offered.value]
        literals = [v for v in values if v is not None]
        return (
            f"({column} in ({', '.join(literals)}))"
            if len(literals) == len(values) and 0 < len(values) <= MAX_LIST
            else None
        )
    if isinstance(offered, StringStartsWith | StringEndsWith | StringContains):
        pattern = _pattern(offered)
        return None if pattern is None else f"({column} like {quoted_text(pattern)})"
    if isinstance(offered, EqualNullSafe):
        value = literal(offered.value)
        return None if value is None else f"({column} is not null and {column} = {value})"
    sign = _SIGNS.get(type(offered))
    value = literal(getattr(offered, "value", None))
    return None if sign is None or value is None else f"({column} {sign} {value})"


def _pattern(offered: StringStartsWith | StringEndsWith | StringContains) -> str | None:
    """Return the pattern of a filter on a part of a string, or None if it is too long."""
    text = offered.value.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    if isinstance(offered, StringStartsWith):
        return f"{text}%"
    pattern = f"%{text}" if isinstance(offered, StringEndsWith) else f"%{text}%"
    return pattern if len(pattern) <= MAX_PATTERN else None


def literal(value: Any) -> str | None:
    """Return a value as a literal of `where`, or None if there is none for it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else None
    if isinstance(value, str):
        return quoted_text(value)
    if isinstance(value, datetime):
        moment = value.astimezone(UTC) if value.tzinfo else value
        return f"timestamp '{moment.isoformat(' ')}'"
    if isinstance(value, date):
        return f"date '{value.isoformat()}'"
    if isinstance(value, bytes | bytearray):
        return f"x'{bytes(value).hex()}'"
    return None
