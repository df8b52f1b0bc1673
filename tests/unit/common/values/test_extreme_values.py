"""Values of every type, including the least and greatest, through all conversions to users and back.

Python's `datetime` and `date` have the years 1 to 9999; a column holds more (D11).
"""

import json
import pickle
from contextlib import nullcontext
from datetime import UTC, date, datetime
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import nyala
from nyala.cli.output import Format, show
from nyala.cli.table_alter import column_set_default
from nyala.client.alter import AlterSteps
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.ids import TableId
from nyala.common.partitioning.partition import PartitionSchema, describe, partitions
from nyala.common.partitioning.partition_spec import Partition, Range, resolve
from nyala.common.schema import Schema, from_arrow
from nyala.common.values.far_times import FarTime
from nyala.common.values.plain_rows import RowReader, encode_rows, plain_value
from nyala.common.values.python_values import list_of, python_of
from nyala.master.ddl.alter_steps import Rules, take
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb

NAIVE, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
FIRST_US, LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
LEAST, MOST = -(1 << 63), (1 << 63) - 1
DIGITS = int("9" * 38)


def scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return a value, times given as their numbers."""
    return pa.scalar(value, kind)


def decimal(digits: int, scale: int) -> pa.Scalar:
    sign, text = int(digits < 0), str(abs(digits))
    return pa.scalar(Decimal((sign, tuple(map(int, text)), -scale)), pa.decimal128(38, scale))


MICROS = [LEAST, LEAST + 1, FIRST_US - 1, FIRST_US, -1, 0, LAST_US, LAST_US + 1, 1 << 62, MOST]
DAYS = [-(1 << 31), FIRST_DAY - 1, FIRST_DAY, -1, 0, LAST_DAY, LAST_DAY + 1, (1 << 31) - 1]
KEYS = [
    *(scalar(v, kind) for kind in (NAIVE, ZONED) for v in MICROS),
    *(scalar(v, pa.date32()) for v in DAYS),
    *(decimal(v, scale) for scale in (0, 10, 38) for v in (-DIGITS, -1, 0, DIGITS)),
    *(scalar(v * (1 << b - 1) - (v > 0), k)
      for b, k in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64()))
      for v in (-1, 1)),
    scalar("", pa.string()), scalar("\0\U0010ffff", pa.string()), scalar(b"\xff\0", pa.binary()),
]  # fmt: skip
FLOATS = [
    scalar(kind.to_pandas_dtype()(v), kind)
    for kind in (pa.float32(), pa.float64())
    for v in (float("nan"), float("inf"), float("-inf"), -0.0, 0.0,
              np.finfo(kind.to_pandas_dtype()).max, np.finfo(kind.to_pandas_dtype()).smallest_subnormal)
]  # fmt: skip
EXTREMES = [*KEYS, *FLOATS, scalar(True, pa.bool_())]
RULES = Rules(100, 3)


def ids(values: list[pa.Scalar]) -> list[str]:
    return [f"{v.type} {v.value if v.type in (NAIVE, ZONED, pa.date32()) else v}" for v in values]


every_value = pytest.mark.parametrize("value", EXTREMES, ids=ids(EXTREMES))
every_key = pytest.mark.parametrize("value", KEYS, ids=ids(KEYS))
far_times = st.one_of(
    st.builds(scalar, st.integers(LEAST, MOST), st.sampled_from([NAIVE, ZONED])),
    st.builds(scalar, st.integers(-(1 << 31), (1 << 31) - 1), st.just(pa.date32())),
)


def str_of(value: pa.Scalar) -> str:
    return str(python_of(value))


def table_of(kind: pa.DataType) -> Schema:
    return from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"])


def same(one: pa.Scalar, other: pa.Scalar) -> bool:
    kind = _bits(one.type)
    left, right = (pa.array([v], one.type).view(kind) for v in (one, other))
    return bool(left.equals(right))


def _bits(kind: pa.DataType) -> pa.DataType:
    return {32: pa.int32(), 64: pa.int64()}[kind.bit_width] if pa.types.is_floating(kind) else kind


def looked_up(value: pa.Scalar) -> Any:
    """Return the value as `get` does: encoded by a server, read by a client."""
    reader = RowReader(["v"], [value.type])
    (row,) = reader.read(encode_rows([[plain_value(value)]]), 1)
    assert row is not None
    return row["v"]


def check_back(value: pa.Scalar) -> None:
    """A row that was read can be printed, and written back unchanged, alone and with others."""
    found = looked_up(value)
    assert repr({"v": found})
    assert python_of(value) == found or found != found
    batch = pa.record_batch([pa.array([value, None], value.type)], ["v"])
    assert repr([list_of(c) for c in batch.columns]) == repr([[found, None]])
    near = 0 if pa.types.is_temporal(value.type) else value
    rows = [
        {"k": 1, "v": found},
        {"k": 2, "v": None},
        {"k": 3, "v": python_of(pa.scalar(near, value.type))},
    ]
    for given_rows in (rows, rows[:1]):
        (made,) = to_batches(given_rows, table_of(value.type))
        assert same(made.column("v")[0], value)


@every_value
def test_row_prints_and_is_rewritten_exactly(value):
    check_back(value)


@given(far_times)
def test_any_time_round_trips_exactly(value):
    check_back(value)


@given(st.integers(FIRST_US, LAST_US), st.integers(FIRST_DAY, LAST_DAY))
def test_times_within_python_range_are_python_times(micros, days):
    assert type(python_of(scalar(micros, NAIVE))) is datetime
    assert type(python_of(scalar(days, pa.date32()))) is date
    zoned = python_of(scalar(micros, ZONED))
    assert zoned.tzinfo is not None
    assert zoned == datetime.fromtimestamp(0, UTC) + (zoned - datetime.fromtimestamp(0, UTC))


@every_value
def test_default_of_any_value_is_set_added_and_described(value, capsys):
    """Regression: the master converted the default to Python, and answered INTERNAL."""
    schema = table_of(value.type)
    spec = pb.TableSpec(name="t", schema=convert.schema_to_proto(schema), replicas=3)
    steps = AlterSteps(OpenTable(TableId("i"), "t", schema, PartitionSchema(), 3, {}))
    steps.set_default("v", value)
    steps.add_column("w", value.type, default=looked_up(value), nullable=False)
    altered = convert.schema_from_proto(take(spec, steps.steps, RULES).spec.schema)
    for name in ("v", "w"):
        default = altered.column(name).default
        assert default is not None
        assert same(default, value)
        assert repr(altered)
        for how in Format:
            show(("default",), [(python_of(default),)], how, data=True)
    assert "default" in capsys.readouterr().out


@every_key
def test_range_bounds_of_any_value_are_accepted_and_described(value):
    schema = from_arrow(pa.schema([("v", value.type)]), ["v"])
    for bound in (value, looked_up(value)):
        split = resolve(Partition(range=Range(["v"], [(None, bound), (bound, None)])), schema)
        below, above = partitions(schema, split)
        words = [describe(schema, split, p) for p in (below, above)]
        assert words == [f"v < {str_of(value)}", f"{str_of(value)} <= v"] or value.as_py() == ""
        wrongs: Any = ([(bound, bound)], [(bound, None), (bound, None)], [(bound, bound, bound)])
        for wrong in wrongs:
            with pytest.raises(InvalidArgument):
                resolve(Partition(range=Range(["v"], wrong)), schema)


@pytest.mark.parametrize("value", [s for s in KEYS if pa.types.is_temporal(s.type)])
def test_unrepresentable_time_is_refused_with_message(value):
    for kind, other in ((pa.int64(), 5), (pa.string(), "x")):
        rows = [{"k": 1, "v": other}, {"k": 2, "v": value}]
        with pytest.raises(
            SchemaMismatch, match=f"row 1: '{str_of(value)[:20]}".replace("+", "[+]")
        ):
            to_batches(rows, table_of(kind))
        with pytest.raises(InvalidArgument, match="default"):
            from_arrow(pa.schema([("k", pa.int64()), ("v", kind)]), ["k"], defaults={"v": value})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (scalar(MOST, NAIVE), "294247-01-10 04:00:54.775807"),
        (scalar(LEAST, ZONED), "-290308-12-21 19:59:05.224192+00:00"),
        (scalar(LAST_US + 1, ZONED), "10000-01-01 00:00:00+00:00"),
        (scalar(FIRST_US - 1, NAIVE), "0000-12-31 23:59:59.999999"),
        (scalar(LAST_US, NAIVE), "9999-12-31 23:59:59.999999"),
        (scalar((1 << 31) - 1, pa.date32()), "5881580-07-11"),
        (scalar(-(1 << 31), pa.date32()), "-5877641-06-23"),
        (scalar(FIRST_DAY - 367, pa.date32()), "-0001-12-31"),
        (scalar(1 << 60, pa.timestamp("s")), str(np.datetime64(1 << 60, "s")).replace("T", " ")),
        (
            scalar(1 << 60, pa.timestamp("ms")),
            str(np.datetime64(1 << 60, "ms")).replace("T", " ") + "000",
        ),
    ],
)
def test_time_text_is_iso_8601(value, text):
    assert str_of(value) == text


@given(st.integers(LEAST + 1, MOST), st.integers(-(1 << 31), (1 << 31) - 1))
def test_far_times_equal_numpy_times(micros, days):
    text = str(FarTime(micros, NAIVE)).replace(" ", "T")
    assert np.datetime64(text, "us").astype(np.int64) == micros
    day = np.datetime64(str(FarTime(days, pa.date32())), "D")
    assert day.astype(np.int64) == days


@pytest.mark.parametrize("how", list(Format))
def test_listings_show_lists_and_structs_of_far_times(how, capsys):
    """Output of `nyala sql` for nested results."""
    far, near = scalar(MOST, NAIVE), scalar(0, NAIVE)
    nested = pa.table({
        "l": pa.array([[MOST, None, 0]], pa.list_(NAIVE)),
        "s": pa.StructArray.from_arrays([pa.array([far]), pa.array([near])], ["a", "b"]),
        "n": pa.array([None], NAIVE),
    })  # fmt: skip
    columns = [list_of(c) for c in nested.columns]
    assert columns[0] == [[FarTime(MOST, NAIVE), None, datetime(1970, 1, 1)]]
    assert columns[1] == [{"a": FarTime(MOST, NAIVE), "b": datetime(1970, 1, 1)}]
    assert columns[2] == [None]
    show(nested.schema.names, list(zip(*columns, strict=True)), how, data=True)
    printed = capsys.readouterr().out
    assert printed.count("294247-01-10") == 2
    if how is Format.JSON:
        assert json.loads(printed)[0]["s"]["a"] == "294247-01-10 04:00:54.775807"


@pytest.mark.parametrize("text", ["0000-01-01 00:00:00", "9999-12-31 00:00:00"])
def test_command_line_default_accepts_any_year_of_four_digits(text, monkeypatch, capsys):
    """Regression: year 0 raised Python's OverflowError."""
    schema, steps = pa.schema([("k", pa.int64()), ("v", NAIVE)]), mock.Mock()
    table = SimpleNamespace(definition=from_arrow(schema, ["k"]), alter=lambda: steps)
    client = SimpleNamespace(table=lambda _name: table)
    monkeypatch.setattr("nyala.client.connect", lambda _masters: nullcontext(client))
    column_set_default("t", "v", text, "")
    ((column, given_default),) = [call.args for call in steps.set_default.mock_calls if call.args]
    made = from_arrow(schema, ["k"], defaults={column: given_default})
    assert str_of(made.column("v").default) == text
    with pytest.raises(typer.Exit):
        column_set_default("t", "v", "1" + text, "")
    assert "1" + text in capsys.readouterr().err


def test_far_time_is_a_value_type():
    far = FarTime(MOST, ZONED)
    assert nyala.FarTime is FarTime
    assert far == FarTime(MOST, ZONED) != FarTime(MOST, NAIVE)
    assert pickle.loads(pickle.dumps(far)) == far
    assert far.scalar.equals(scalar(MOST, ZONED))
    assert repr(far) == "nyala.FarTime('294247-01-10 04:00:54.775807+00:00')"
