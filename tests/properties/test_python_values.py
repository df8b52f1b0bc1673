"""Values in lists of dicts are stored exactly, or refused with their column and row.

The same holds for defaults and bounds of ranges.
"""

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.partition_spec import Partition, Range, resolve
from nyala.common.schema import from_arrow

NOON = dt.datetime(2020, 1, 1, 12, 30)
DAY = dt.date(2020, 1, 1)
NS = pd.Timestamp("2020-01-01 00:00:00.000000001")
NS_EVEN = np.datetime64("2020-01-01T12:30", "ns")
NS_ODD = np.datetime64("2020-01-01T00:00:00.000000001", "ns")
EAST = dt.timezone(dt.timedelta(hours=5))
VALUES = [
    None, True, False, 0, 7, -1, 127, 128, 2**53 + 1, 2**63 - 1, 2**70, 0.0, 7.0, 0.5, 0.1, 1e300,
    float("inf"), np.float16(0.5), np.float16(7), np.float32(0.1), np.int8(5), np.bool_(True), Decimal("7"),
    Decimal("7.25"), Decimal("7.255"), "7", "é", b"7", b"\xff", DAY, NOON, NOON.replace(tzinfo=dt.UTC), NS,
    NS.floor("us"), NS.tz_localize("UTC"), np.datetime64("2020-01-01", "D"), NS_ODD, NS_EVEN, pd.NaT, pd.NA,
    dt.time(1), [1], NOON.replace(tzinfo=EAST),
]  # fmt: skip
KINDS = [
    pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.date32(),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(6, 2),
]  # fmt: skip
KEYS = [k for k in KINDS if k not in (pa.bool_(), pa.float32(), pa.float64())]
LOST = object()


def numeric(value: Any) -> Any:
    """Return a number as a Python number; LOST if it is not one."""
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | Decimal | np.number
    ):
        return LOST
    return value.item() if isinstance(value, np.number) else value


def stored(value: Any, kind: pa.DataType) -> Any:
    """Return the value stored in a column of a type; LOST if it is not representable."""
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    number = numeric(value)
    if pa.types.is_integer(kind):
        if number is LOST or number != number or number in (float("inf"), -float("inf")):
            return LOST
        top = 2 ** (kind.bit_width - 1)
        return int(number) if number == int(number) and -top <= number < top else LOST
    if pa.types.is_floating(kind):
        return as_float(value, number, kind)
    if pa.types.is_decimal(kind):
        if number is LOST or isinstance(number, float):
            return LOST
        made = Decimal(number)
        return made if abs(made) < 10_000 and made == round(made, 2) else LOST
    if kind == pa.bool_():
        return bool(value) if isinstance(value, bool | np.bool_) else LOST
    if kind in (pa.string(), pa.binary()):
        return value if isinstance(value, str if kind == pa.string() else bytes) else LOST
    return moment(value, kind)


def as_float(value: Any, number: Any, kind: pa.DataType) -> Any:
    if number is LOST or isinstance(number, Decimal):
        return LOST
    if abs(number) > 2**64 and isinstance(number, int):
        return LOST
    width = np.float32 if kind == pa.float32() else np.float64
    with np.errstate(over="ignore"):
        made = float(width(number))
    if isinstance(number, int):
        return made if int(made) == number else LOST
    return LOST if np.isinf(made) and not np.isinf(number) else made


def moment(value: Any, kind: pa.DataType) -> Any:
    if isinstance(value, np.datetime64):
        value = (
            LOST if value.dtype == "datetime64[D]" else pd.Timestamp(value)
        )  # Arrow accepts no numpy dates
    if isinstance(value, dt.datetime):
        if getattr(value, "nanosecond", 0) or kind == pa.date32():
            return LOST
        zoned = value.tzinfo is not None
        return value if zoned == (kind.tz is not None) else LOST
    if not isinstance(value, dt.date) or getattr(kind, "tz", None) is not None:
        return LOST
    return value if kind == pa.date32() else dt.datetime.combine(value, dt.time())


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.sampled_from(VALUES), min_size=1, max_size=4))
@example(pa.timestamp("us"), [DAY, NOON])
@example(pa.date32(), [DAY, NOON])
@example(pa.int64(), [np.float16(0.5), 7])
@example(pa.timestamp("us"), [NS])
@example(pa.int64(), [2, np.bool_(True)])
@example(pa.binary(), [b"7", "é"])
def test_value_is_stored_exactly_or_refused_with_its_row(kind, values):
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"])
    expected = [stored(v, kind) for v in values]
    rows = [{"k": n, "v": v} for n, v in enumerate(values)]
    if LOST not in expected:
        (batch,) = to_batches(rows, schema)
        assert batch.column("v").to_pylist() == expected
        return
    with pytest.raises(SchemaMismatch) as caught:
        to_batches(rows, schema)
    if (
        len({type(v) for v in values if stored(v, kind) is not None}) > 1
    ):  # otherwise only the column is named
        row = int(caught.value.details["row"])
        assert expected[row] is LOST, caught.value.message
        assert f"column 'v', row {row}: " in caught.value.message


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_defaults_are_exact_or_refused_by_name(kind):
    shape = pa.schema([("k", pa.int64()), ("v", kind)])
    for value in VALUES:
        if value is None or value is pd.NaT or value is pd.NA:
            continue
        expected = stored(value, kind)
        if expected is LOST:
            with pytest.raises(InvalidArgument, match="of column 'v' is not a valid "):
                from_arrow(shape, ["k"], defaults={"v": value})
        else:
            made = from_arrow(shape, ["k"], defaults={"v": value}).column("v").default
            assert made is not None
            assert (made.type, made.as_py()) == (kind, expected)


@pytest.mark.parametrize(
    "kind", [k for k in KINDS if k not in (pa.bool_(), pa.float32(), pa.float64())], ids=str
)
def test_ends_of_ranges_are_exact_or_refused_by_name(kind):
    schema = from_arrow(pa.schema([("k", kind), ("v", pa.int8())]), ["k"])
    for value in VALUES:
        if value is None or value is pd.NaT or value is pd.NA or isinstance(value, list):
            continue
        spec = Partition(range=Range(["k"], [(value, None)]))
        if stored(value, kind) is LOST:
            with pytest.raises(
                InvalidArgument, match=r"range end of column 'k': .* is not a valid "
            ):
                resolve(spec, schema)
        else:
            resolve(spec, schema)
