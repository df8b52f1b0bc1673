"""Hypothesis strategies for keys, rows and predicates over one wide schema."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

from nyala.common import schema as schemas
from nyala.common.expressions.predicate import (
    Compare,
    CompareOp,
    In,
    IsNull,
    Not,
    Prefix,
    all_of,
    any_of,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.text(
    "\0\1ab\U0010ffff", max_size=4
)


def integers(bits):
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1
    return st.sampled_from([low, -1, 0, 1, high]) | st.integers(low, high)


def decimals(kind):
    limit = 10**kind.precision - 1
    whole = st.sampled_from([-limit, 0, limit]) | st.integers(-limit, limit)
    return whole.map(lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -kind.scale)))


def moments(zone):
    low, high = datetime(1, 1, 2), datetime(9999, 12, 30)
    return st.datetimes(low, high).map(lambda d: d.replace(tzinfo=UTC) if zone else d)


KEY_VALUES = {
    pa.int8(): integers(8),
    pa.int16(): integers(16),
    pa.int32(): integers(32),
    pa.int64(): integers(64),
    pa.string(): TEXT,
    pa.binary(): st.binary(max_size=6) | TEXT.map(str.encode),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us"): moments(False),
    pa.timestamp("us", "UTC"): moments(True),
    pa.decimal128(5, 2): decimals(pa.decimal128(5, 2)),
    pa.decimal128(38, 10): decimals(pa.decimal128(38, 10)),
}
KINDS = st.lists(st.sampled_from(list(KEY_VALUES)), min_size=1, max_size=4)


@st.composite
def key_rows(draw, least=1, most=8):
    """Return (types, rows): tuples of key values of 1 to 4 types."""
    kinds = draw(KINDS)
    row = st.tuples(*(KEY_VALUES[k] for k in kinds))
    return kinds, draw(st.lists(row, min_size=least, max_size=most))


SCHEMA = schemas.from_arrow(
    pa.schema(
        [
            ("s", pa.string()),
            ("n", pa.int8()),
            ("d", pa.decimal128(3, 1)),
            ("f", pa.float64()),
            ("b", pa.bool_()),
            ("day", pa.date32()),
        ]
    ),
    ["s", "n"],
)
SMALL = {
    "s": st.text("ab\0\U0010ffff", max_size=3),
    "n": st.integers(-3, 3) | st.sampled_from([-128, 127]),
    "d": st.integers(-999, 999).map(lambda n: Decimal(n) / 10),
    "f": st.sampled_from([0.0, -0.0, 1.5, -2.0, float("inf"), float("nan")]),
    "b": st.booleans(),
    "day": st.dates(date(2024, 1, 1), date(2024, 1, 5)),
}
ROW = st.fixed_dictionaries({n: s if n in ("s", "n") else st.none() | s for n, s in SMALL.items()})


@st.composite
def batches(draw):
    rows = draw(st.lists(ROW, min_size=1, max_size=12))
    return pa.RecordBatch.from_pylist(rows, schema=SCHEMA.arrow)


@st.composite
def leaves(draw):
    column = draw(st.sampled_from(SCHEMA.columns))
    values = SMALL[column.name]
    kind = draw(st.sampled_from(["compare", "in", "null", "prefix"]))
    if kind == "compare":
        return Compare(
            column.id, draw(st.sampled_from(CompareOp)), pa.scalar(draw(values), column.type)
        )
    if kind == "in":
        return In(column.id, pa.array(draw(st.lists(values, max_size=4)), column.type))
    return (
        Prefix(SCHEMA.column("s").id, draw(SMALL["s"])) if kind == "prefix" else IsNull(column.id)
    )


TREES = st.recursive(
    leaves(),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map(all_of),
        st.lists(inner, min_size=2, max_size=3).map(any_of),
        inner.map(Not),
    ),
    max_leaves=8,
)
