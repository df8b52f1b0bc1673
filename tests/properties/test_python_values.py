"""Values in lists of dicts are stored exactly, or refused with their column and row.

The same holds for defaults and bounds of ranges.
"""

import datetime as dt
import re
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.partitioning.partition_spec import Partition, Range, resolve
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
    dt.time(1), [1], NOON.replace(tzinfo=EAST), np.datetime64("2020-01"), np.datetime64("2020-01-02", "W"),
    np.datetime64("NaT"), np.datetime64("NaT", "D"), np.datetime64("NaT", "us"), np.timedelta64("NaT", "s"),
    np.datetime64("2020-01-01T12", "h"), np.datetime64("2020-01-01T12:30"),
    np.datetime64(str(NOON), ("s", 25)),
]  # fmt: skip
KINDS = [
    pa.int8(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.date32(),
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.decimal128(6, 2),
]  # fmt: skip
KEYS = [k for k in KINDS if k not in (pa.bool_(), pa.float32(), pa.float64())]
LOST = object()


def is_missing(value: Any) -> bool:
    """Return whether a value is a null."""
    numpy_time = isinstance(value, np.datetime64 | np.timedelta64)
    return value is None or value is pd.NaT or value is pd.NA or (numpy_time and np.isnat(value))


def numeric(value: Any) -> Any:
    """Return a number as a Python number; LOST if it is not one."""
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | Decimal | np.number
    ):
        return LOST
    return value.item() if isinstance(value, np.number) else value


def stored(value: Any, kind: pa.DataType) -> Any:
    """Return the value stored in a column of a type; LOST if it is not representable."""
    if is_missing(value):
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
        days = np.datetime_data(value.dtype)[0] in "YMWD"
        value = (
            value.astype("datetime64[D]").item() if days else pd.Timestamp(value.astype("M8[ns]"))
        )
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
        if is_missing(value):
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
        if is_missing(value) or isinstance(value, list):
            continue
        spec = Partition(range=Range(["k"], [(value, None)]))
        if stored(value, kind) is LOST:
            with pytest.raises(
                InvalidArgument, match=r"range end of column 'k': .* is not a valid "
            ):
                resolve(spec, schema)
        else:
            resolve(spec, schema)


def one(value: Any, kind: pa.DataType) -> Any:
    """Return the stored value of a row."""
    schema = from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"])
    (batch,) = to_batches([{"k": 0, "v": value}], schema)
    return batch.column("v")[0]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.datetime64(1_000_000_000_000, "ps"), pa.timestamp("us"), 1_000_000),
        (np.datetime64(-1_000_000_000_000, "as"), pa.timestamp("us"), -1),
        (np.datetime64("1970-01-01T00:04:10", ("s", 25)), pa.timestamp("us"), 250_000_000),
        (np.datetime64(2**31 - 1, "D"), pa.date32(), 2**31 - 1),
        (np.datetime64(-1, "Y"), pa.date32(), -365),
        (np.datetime64(2**63 - 1, "us"), pa.timestamp("us"), 2**63 - 1),
    ],
)
def test_numpy_time_of_any_unit_is_stored_exactly(value, kind, expected):
    assert one(value, kind).value == expected


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**38 - 1])
def test_integer_of_more_than_64_bits_is_stored_in_a_decimal_column(number):
    assert one(number, pa.decimal128(38, 0)).as_py() == number


INTERNALS = (
    r"[Aa]rrow|C long|codec|Unsupported|inferring|numpy type|argument must|too large|\[1, 38\]"
)
STRANGE = [
    np.datetime64(1, "ps"), np.datetime64(5, "as"), np.datetime64(2**62, "s"), np.datetime64(2**40, "Y"),
    np.datetime64(2**31, "D"), np.datetime64(-(2**62), "h"), np.timedelta64(1, "s"), np.longdouble(1) / 3,
    np.complex128(1), np.array(5), np.array([1]), np.void(b"ab"), np.ma.masked, Decimal("NaN"),
    Decimal("sNaN"), Decimal("-Infinity"), Decimal("1E+90"), Decimal("1E-90"), dt.timedelta(1),
    pd.Timedelta(1), pd.Period("2026-01"), 2**200, 1 + 0j, object(), {}, "\ud800", range(3), (1, "a"),
    [1, "a"], dt.datetime(1, 1, 1, tzinfo=EAST),
    dt.datetime.max.replace(tzinfo=dt.timezone(dt.timedelta(hours=-5))),
]  # fmt: skip


def refusal(action: Callable[[], Any]) -> str:
    """Return the message of a refusal; empty: there was none."""
    try:
        action()
    except (SchemaMismatch, InvalidArgument) as err:
        return err.message
    return ""


@pytest.mark.parametrize(
    "value", STRANGE, ids=[f"{n} {type(v).__name__}" for n, v in enumerate(STRANGE)]
)
def test_strange_value_is_refused_in_own_words(value):
    for kind in KINDS:
        shape = pa.schema([("k", pa.int64()), ("v", kind)])
        for values in ([value], [value, value], [None, value]):
            rows = [{"k": n, "v": v} for n, v in enumerate(values)]
            words = refusal(partial(to_batches, rows, from_arrow(shape, ["k"])))
            assert words or isinstance(value, dt.datetime), kind
            assert not re.search(INTERNALS, words)
        words = refusal(partial(from_arrow, shape, ["k"], defaults={"v": value}))
        assert not re.search(INTERNALS, words)
