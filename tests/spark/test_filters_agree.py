"""Spark's filters, as `where`, select what they select in Spark.

DuckDB stands for Spark here, without its JVM: to both, NaN is the greatest number and equals itself, and null
is unknown. `test_spark_read.py` compares with Spark itself.
"""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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

from nyala.common.expressions.predicate import evaluate
from nyala.common.expressions.where import parse
from nyala.common.schema import from_arrow
from nyala.spark.filters import as_where

pytestmark = pytest.mark.full

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "k": (pa.int64(), [0, 1, -1, 2**62, -(2**63)]),
    "i8": (pa.int8(), [0, 1, 127, -128]),
    "d": (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("-2.25"), Decimal("0.00")]),
    "f": (pa.float32(), [0.5, -2.25, 0.0, math.nan, math.inf]),
    "g": (pa.float64(), [0.5, 1e10, -0.0, math.nan, -math.inf]),
    "s": (pa.string(), ["a", "aB", "", 'é"', "it's", "b_%", "\\", "_"]),
    "day": (pa.date32(), [date(2020, 1, 2), date(1969, 12, 31)]),
    "t": (pa.timestamp("us"), [datetime(2020, 1, 2), datetime(1969, 12, 31, 23, 59, 59, 999_999)]),
    "z": (pa.timestamp("us", "UTC"), [datetime(2020, 1, 2, tzinfo=UTC)]),
    "b": (pa.bool_(), [True, False]),
    "x": (pa.binary(), [b"", b"\0", b"a"]),
}
SIGNS: dict[type, str] = {
    EqualTo: "=", EqualNullSafe: "is not distinct from", LessThan: "<", LessThanOrEqual: "<=",
    GreaterThan: ">", GreaterThanOrEqual: ">=",
}  # fmt: skip
PARTS: dict[type, str] = {
    StringStartsWith: "starts_with", StringEndsWith: "ends_with", StringContains: "contains",
}  # fmt: skip
COLUMNS = {n: pa.array([*v, *v, None], kind) for n, (kind, v) in VALUES.items() if n != "k"}
COUNT = max(map(len, COLUMNS.values()))
ROWS = pa.table(
    {"k": pa.array(range(COUNT), pa.int64())}
    | {n: a.take(pa.array([i % len(a) for i in range(COUNT)])) for n, a in COLUMNS.items()}
)
SCHEMA = from_arrow(ROWS.schema, ["k"])
FLOATS = ("f", "g")


@st.composite
def filters(draw: Any) -> Filter:
    """A filter, negated or not."""
    if draw(st.integers(0, 3)) == 0:
        return Not(draw(filters()))
    name = draw(st.sampled_from(list(VALUES)))
    value = st.sampled_from(VALUES[name][1])
    kinds = [*SIGNS, In, IsNull, IsNotNull, *(PARTS if name == "s" else ())]
    kind = draw(st.sampled_from(kinds))
    if kind in (IsNull, IsNotNull):
        return kind((name,))
    if kind is In:
        return In((name,), tuple(draw(st.lists(st.none() | value, max_size=3))))
    return kind((name,), draw(value))


def in_duckdb(one: Filter, values: list[Any]) -> str:
    """Return a filter as DuckDB's SQL, and append its values to the parameters."""
    if isinstance(one, Not):
        return f"not ({in_duckdb(one.child, values)})"
    name = getattr(one, "attribute")[0]  # noqa: B009
    if isinstance(one, IsNull | IsNotNull):
        return f"{name} is {'not ' * isinstance(one, IsNotNull)}null"
    given = list(one.value) if isinstance(one, In) else [one.value]
    values += given
    marks = ["?"] * len(given)
    if isinstance(one, In):
        return f"{name} in ({', '.join(marks)})" if marks else "false"
    if type(one) in PARTS:
        return f"{PARTS[type(one)]}({name}, {marks[0]})"
    return f"{name} {SIGNS[type(one)]} {marks[0]}"


@settings(max_examples=300, deadline=None)
@given(filters())
def test_pushed_filter_selects_what_spark_selects(one):
    text = as_where(one, FLOATS)
    if text is None:
        return
    found = evaluate(parse(text, SCHEMA), lambda i: ROWS[SCHEMA.by_id[i].name], ROWS.num_rows)
    values: list[Any] = []
    condition = in_duckdb(one, values)
    with duckdb.connect() as database:
        database.execute("set timezone = 'UTC'")
        database.register("rows", ROWS)
        database.execute(
            "create table r as from rows"
        )  # filters of an Arrow table are not evaluated by DuckDB
        expected = database.execute(f"select k from r where {condition} order by k", values)
        assert ROWS.filter(found)["k"].to_pylist() == [k for (k,) in expected.fetchall()], text


def test_most_filters_are_pushed():
    examples = [kind((name,), VALUES[name][1][0]) for name in VALUES for kind in SIGNS]
    pushed = [one for one in examples if as_where(one, FLOATS) is not None]
    assert len(pushed) == len(examples) - 3 * len(FLOATS)
