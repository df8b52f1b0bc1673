"""Values of every column type, among them its ends, and tables of them."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

NAN, INF = float("nan"), float("inf")
NINES = "9" * 38
ENDS: dict[pa.DataType, list[Any]] = {
    pa.bool_(): [True, False],
    **{
        kind: [-(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1, 0]
        for kind in (pa.int8(), pa.int16(), pa.int32())
    },
    pa.int64(): [-(2**63), 2**63 - 1, 2**53 + 1, -(2**53) - 1, 0],
    pa.float32(): [NAN, INF, -INF, -0.0, 2.0**-149, 16777216.0],
    pa.float64(): [NAN, INF, -INF, -0.0, 5e-324, 2.0**53, 1.7976931348623157e308],
    pa.string(): ["", "é\x00", "None", "NaN", "\U0010ffff"],
    pa.binary(): [b"", b"\xff\x00"],
    pa.date32(): [dt.date(1, 1, 1), dt.date(9999, 12, 31), -(2**31) + 1, 2**31 - 2, 0],
    pa.timestamp("us"): [dt.datetime(1, 1, 1), dt.datetime.max, -(2**63) + 2, 2**63 - 2, 0],
    pa.timestamp("us", "UTC"): [dt.datetime(1, 1, 1, tzinfo=dt.UTC), -(2**63) + 2, 2**63 - 2, 0],
    pa.decimal128(38, 0): [Decimal(NINES), Decimal(f"-{NINES}"), Decimal(0)],
    pa.decimal128(38, 38): [Decimal(f"0.{NINES}"), Decimal(f"-0.{NINES}"), Decimal("1e-38")],
    pa.decimal128(5, 2): [Decimal("999.99"), Decimal("-0.01"), Decimal(7)],
}


def any_values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Return values of a type, its ends and null among them."""
    values = st.none() | st.sampled_from(ENDS[kind])
    if pa.types.is_integer(kind):
        top = 2 ** (kind.bit_width - 1)
        values |= st.integers(-top, top - 1)
    if pa.types.is_floating(kind):
        values |= st.floats(width=kind.bit_width)
    if pa.types.is_string(kind):
        values |= st.text()
    if pa.types.is_binary(kind):
        values |= st.binary()
    return values


def table_with(values: list[Any], kind: pa.DataType) -> pa.Table:
    """Return a table with these values in the column `v`, and a key `k`."""
    return pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)})


def bits(values: pa.ChunkedArray) -> list[bytes | None]:
    """Return the stored bits of a column, so that NaN equals NaN and zero has its sign."""
    return [None if not v.is_valid else repr(raw(v)).encode() for v in values]


def raw(value: pa.Scalar) -> Any:
    """Return a value, of a date or time its number."""
    moment = pa.types.is_date(value.type) or pa.types.is_timestamp(value.type)
    return value.value if moment else value.as_py()
