"""A frame that creates a table can be written to it and read back unchanged; others are refused by column."""

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.frames import definition_of
from nyala.common.schema import from_arrow
from nyala.common.values.casting import Conversion

BERLIN = ZoneInfo("Europe/Berlin")
TIMES = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2250, 1, 1))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": st.text(max_size=4),
    "bytes": st.binary(max_size=4),
    "flag": st.booleans(),
    "real": st.floats(allow_nan=False),
    "day": st.dates(),
    "time": TIMES,
    "zoned": TIMES.map(lambda t: t.replace(tzinfo=dt.UTC).astimezone(BERLIN)),
    "digits": st.decimals(-999, 999, places=2),
    "whole": st.integers(-(2**63), 2**63 - 1),
    **{f"uint{n}": st.integers(0, 2**n - 1) for n in (8, 16, 32)},
}
ARROW = {
    "text": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())],
    "bytes": [pa.binary(), pa.large_binary()],
    "flag": [pa.bool_()],
    "real": [pa.float64()],
    "day": [pa.date32(), pa.date64()],
    "time": [pa.timestamp("us"), pa.timestamp("ns")],
    "zoned": [pa.timestamp("us", "Europe/Berlin"), pa.timestamp("ns", "UTC")],
    "digits": [pa.decimal128(5, 2), pa.decimal256(9, 4), pa.decimal32(5, 2)],
    "whole": [pa.int64()],
    "uint8": [pa.uint8()], "uint16": [pa.uint16()], "uint32": [pa.uint32()],
}  # fmt: skip


def as_pandas(table: pa.Table, draw: Any) -> pd.DataFrame:
    frame = table.to_pandas(integer_object_nulls=True)
    shape = draw(st.integers(0, 2))
    if shape == 0:
        return frame
    if shape == 1:  # a filtered frame keeps its rows' index
        return pd.concat([frame.iloc[:1], frame])[1:].iloc[::-1][::-1]
    return frame.set_index("k")


@st.composite
def frames(draw: Any) -> tuple[Any, list[dict[str, Any]]]:
    """A frame of some library, and its rows as Python values."""
    count = draw(st.integers(1, 5))
    kinds = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    columns: dict[str, pa.Array] = {"k": pa.array(range(count), pa.int32())}
    plain: dict[str, list[Any]] = {"k": list(range(count))}
    for number, kind in enumerate(kinds):
        values = draw(st.lists(st.none() | VALUES[kind], min_size=count, max_size=count))
        if all(v is None for v in values):
            values[0] = draw(VALUES[kind])
        plain[f"c{number}"] = values
        arrow = draw(st.sampled_from(ARROW[kind]))
        columns[f"c{number}"] = pa.array(values, arrow) if not pa.types.is_date64(arrow) else pa.array(
            values, pa.date32()).cast(arrow)  # fmt: skip
    rows = [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]
    table = pa.table(columns)
    shape = draw(st.sampled_from(["arrow", "batch", "pandas", "polars", "dicts", "reader"]))
    types = [array.type for array in columns.values()]
    if shape == "polars" and any(
        t in types for t in (pa.decimal256(9, 4), pa.decimal32(5, 2), pa.date64())
    ):
        shape = "arrow"  # polars refuses these, or converts them
    if shape == "pandas":
        return as_pandas(table, draw), rows
    made: dict[str, Any] = {
        "arrow": lambda: table, "batch": lambda: table.combine_chunks().to_batches()[0],
        "polars": lambda: pl.from_arrow(table), "dicts": lambda: rows, "reader": lambda: table.to_reader(),
    }  # fmt: skip
    return made[shape](), rows


@settings(max_examples=300, deadline=None)
@given(frames())
def test_frame_that_defines_a_table_is_writable_to_it(drawn):
    frame, rows = drawn
    schema = definition_of(frame, ["k"]).schema
    written = [row for batch in to_batches(frame, schema) for row in batch.to_pylist()]
    assert [{name: same(v) for name, v in row.items()} for row in written] == [
        {name: same(v) for name, v in row.items()} for row in rows
    ]


def same(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC)
    return value


NS = pd.Timestamp("2020-01-01 00:00:00.000000001")
REFUSED = {
    "nanoseconds": (pd.DataFrame({"k": [1], "t": [NS]}), "column 't', row 0"),
    "nanoseconds in dicts": (
        [{"k": 1, "t": NS.floor("s")}, {"k": 2, "t": NS}],
        "column 't', row 1",
    ),
    "only nulls": (
        pd.DataFrame({"k": [1], "n": [None]}),
        "column 'n' has only nulls",
    ),
    "only nulls in dicts": ([{"k": 1, "n": None}], "column 'n' has only nulls"),
    "64 bits without sign": (pl.DataFrame({"k": [1], "u": [2**63]}), "column 'u': .* uint64"),
    "spans": (pd.DataFrame({"k": [1], "d": pd.to_timedelta(["1s"])}), "column 'd': .*duration"),
    "lists": (pl.DataFrame({"k": [1], "l": [[1]]}), "column 'l': .*list"),
    "digits without end": (
        pa.table({"k": [1], "m": pa.array([1], pa.decimal256(60, 0))}),
        "column 'm'",
    ),
    "a moment beyond": (
        pa.table({"k": [1], "t": pa.array([2**62], pa.timestamp("s"))}),
        "column 't', row 0",
    ),
    "a bool among numbers": (
        [{"k": 1, "v": 5}, {"k": 2, "v": True}],
        "column 'v' mixes bool and integer",
    ),
    "rows without a key": ([{"k": 1}, {"v": 2}], "has no key column 'k'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_frame_with_unsupported_data_defines_no_table(what):
    frame, words = REFUSED[what]
    with pytest.raises((InvalidArgument, SchemaMismatch), match=words):
        definition_of(frame, ["k"])


def types_of(frame: Any, key: str = "k") -> dict[str, str]:
    return {c.name: str(c.type) for c in definition_of(frame, [key]).schema.columns}


def test_frame_types_map_to_column_types():
    filtered = pd.DataFrame({"k": [1, 2], "u": np.array([1, 2], np.uint8)})[lambda f: f.k > 1]
    assert types_of(filtered) == {"k": "int64", "u": "int16"}
    assert types_of(pd.DataFrame({"v": [1]}, index=pd.Index([5], name="k"))) == {
        "k": "int64",
        "v": "int64",
    }  # fmt: skip
    frame = pd.DataFrame({"k": [1], "t": pd.to_datetime(["2020-01-01"])})
    assert types_of(frame) == {"k": "int64", "t": "timestamp[us]"}
    frame["t"] = frame["t"].dt.tz_localize("Europe/Berlin")
    assert types_of(frame)["t"] == "timestamp[us, tz=UTC]"
    assert types_of([{"k": 1, "v": 1}, {"k": 2, "v": 0.5, "w": dt.date(2020, 1, 1)},
                     {"k": 3, "w": dt.datetime(2020, 1, 1, 12)}]) == {
        "k": "int64", "v": "double", "w": "timestamp[us]",
    }  # fmt: skip
    assert (
        types_of(pl.DataFrame({"k": [1], "h": pl.Series([1], dtype=pl.UInt32)}).schema)["h"]
        == "int64"
    )
    assert types_of(pa.table({"k": [1], "h": pa.array([0.5], pa.float16())})) == {
        "k": "int64",
        "h": "float",
    }


def test_arrow_schema_is_used_unchanged():
    with pytest.raises(InvalidArgument, match=r"column 't': Arrow type timestamp\[ns\]"):
        definition_of(pa.schema([("k", pa.int64()), ("t", pa.timestamp("ns"))]), ["k"])


def test_pandas_index_is_dropped_where_it_is_a_column():
    frame = pd.DataFrame({"k": [1, 2], "m": [Decimal("1.5"), None]}).set_index("k", drop=False)
    schema = definition_of(frame, ["k"]).schema
    (batch,) = to_batches(frame, schema)
    assert batch.to_pylist() == [{"k": 1, "m": Decimal("1.5")}, {"k": 2, "m": None}]


def table_of(**types: pa.DataType) -> Any:
    return from_arrow(pa.schema({"k": pa.int64(), **types}), ["k"])


def values_of(frame: Any, column: pa.DataType, **requested: Any) -> list[Any]:
    batches = to_batches(frame, table_of(v=column), conversion=Conversion(**requested))
    return [value for batch in batches for value in batch.column("v").to_pylist()]


def frames_of(values: list[Any], arrow: pa.DataType) -> dict[str, Any]:
    """The same column as frames of all libraries."""
    table = pa.table({"k": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, arrow)})
    return {"arrow": table, "pandas": table.to_pandas(), "polars": pl.from_arrow(table)}


FLOATS = st.floats() | st.floats(width=32) | st.integers(-(2**26), 2**26).map(float)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | FLOATS, min_size=1, max_size=4))
def test_doubles_become_floats_only_if_exact(values):
    inexact = [row for row, v in enumerate(values) if v is not None and v == v and float32(v) != v]
    for library, frame in frames_of(values, pa.float64()).items():
        if inexact:
            with pytest.raises(SchemaMismatch, match=rf"column 'v', row {inexact[0]}: .*float32"):
                values_of(frame, pa.float32())
            continue
        expected = [None if library == "pandas" and v != v else v for v in values]
        assert repr(values_of(frame, pa.float32())) == repr(expected)


def float32(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.none() | st.decimals(allow_nan=False, allow_infinity=False,
                                        min_value=Decimal(-10) ** 37, max_value=Decimal(10) ** 37, places=20),
                min_size=1, max_size=4))  # fmt: skip
def test_decimals_are_rounded_to_nearest_float_on_request_only(values):
    if all(v is None for v in values):
        values = [*values, Decimal("0.1")]
    rows = [{"k": k, "v": v} for k, v in enumerate(values)]
    frame = pd.DataFrame({"k": range(len(values)), "v": pd.Series(values, dtype=object)})
    for data in (rows, frame, pa.table({"k": range(len(values)), "v": pa.array(values)})):
        with pytest.raises(SchemaMismatch, match=r"column 'v'.*round_decimals=True"):
            values_of(data, pa.float64())
        made = values_of(data, pa.float64(), round_decimals=True)
        assert made == [None if v is None else float(v) for v in values]


def test_decimal_outside_range_of_float_is_refused_with_row():
    data = pa.table({"k": [1, 2], "v": pa.array([Decimal(1), Decimal(10) ** 60])})
    with pytest.raises(SchemaMismatch, match=r"column 'v', row 1: .*outside the range of float"):
        values_of(data, pa.float32(), round_decimals=True)
    assert values_of(data, pa.float64(), round_decimals=True) == [1.0, 1e60]


def test_decimals_and_floats_share_a_column_on_request():
    rows = [{"k": 1, "v": Decimal("0.5")}, {"k": 2, "v": 0.25}, {"k": 3, "v": None}]
    assert values_of(rows, pa.float64(), round_decimals=True) == [0.5, 0.25, None]
    with pytest.raises(SchemaMismatch, match="column 'v', row 0"):
        values_of(rows, pa.float64())
    made = definition_of(rows, ["k"], conversion=Conversion(round_decimals=True))
    assert made.schema.by_name["v"].type == pa.float64()
    assert definition_of(rows[:1], ["k"]).schema.by_name["v"].type == pa.decimal128(1, 1)


NAN, INT = float("nan"), pa.int64()
MASKED = pd.Series(
    pd.arrays.FloatingArray(np.array([1.0, NAN, 2.0]), np.array([False, False, True]))
)
ROWS = [{"k": 0, "v": 1.0}, {"k": 1, "v": NAN}, {"k": 2, "v": None}]
FORMS: dict[str, Any] = {
    "dicts": ROWS,
    "arrow": pa.table({"k": [0, 1, 2], "v": pa.array([1.0, NAN, None])}),
    "polars": pl.DataFrame({"k": [0, 1, 2], "v": [1.0, NAN, None]}),
    "pandas numpy": pd.DataFrame({"k": [0, 1, 2], "v": [1.0, NAN, NAN]}),
    "pandas objects": pd.DataFrame({"k": [0, 1, 2], "v": pd.Series([1.0, NAN, None], dtype=object)}),
    "pandas masked": pd.DataFrame({"k": [0, 1, 2], "v": MASKED}),
    "pandas categories": pd.DataFrame({"k": [0, 1, 2], "v": pd.Categorical([1.0, NAN, NAN])}),
}  # fmt: skip
NAN_IN = {  # as stored: not requested, kept, null
    "dicts": "NaN NaN null", "arrow": "NaN NaN null", "polars": "NaN NaN null",
    "pandas numpy": "null NaN null", "pandas objects": "null NaN null", "pandas masked": "NaN NaN null",
    "pandas categories": "null null null",
}  # fmt: skip


@pytest.mark.parametrize("column", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("form", FORMS)
def test_nan_is_a_value_or_null_as_requested(form, column):
    for requested, expected in zip((None, False, True), NAN_IN[form].split(), strict=True):
        one, two, three = values_of(FORMS[form], column, nan_is_null=requested)
        assert (one, "null" if two is None else "NaN") == (1.0, expected)
        kept = form == "pandas numpy" and requested is False  # numpy has no other missing value
        assert (three is None) is not kept


@pytest.mark.parametrize("form", FORMS)
def test_nan_in_column_without_nan_is_null_or_refused(form):
    missing = [1, None, None]
    assert values_of(FORMS[form], INT, nan_is_null=True) == missing
    if NAN_IN[form].startswith("null"):
        assert values_of(FORMS[form], INT) == missing
        assert values_of(FORMS[form], INT, nan_is_null=False) == missing
    else:
        with pytest.raises(SchemaMismatch, match="column 'v', row 1"):
            values_of(FORMS[form], INT)


def test_nan_among_texts_of_dicts_is_null_on_request():
    rows = [{"k": 1, "v": "a"}, {"k": 2, "v": NAN}]
    assert values_of(rows, pa.string(), nan_is_null=True) == ["a", None]
    with pytest.raises(SchemaMismatch, match="column 'v', row 1"):
        values_of(rows, pa.string())


def test_wrong_requests_are_refused():
    for wrong in ({"nan_is_null": "yes"}, {"round_decimals": 1}):
        with pytest.raises(InvalidArgument, match="pass True"):
            Conversion(**wrong)


MOMENT = dt.datetime(2020, 1, 1, 5)
MIXED = [MOMENT.date(), MOMENT]


@pytest.mark.parametrize("label", ["v", 7])
@pytest.mark.parametrize("kind", ["objects", "categories"])
def test_python_objects_keep_their_times_under_any_label(label, kind):
    values = pd.Series(MIXED, dtype=object) if kind == "objects" else pd.Categorical(MIXED)
    frame = pd.DataFrame({"k": [1, 2]})
    frame.columns = frame.columns.astype(object)
    frame.insert(1, label, values)
    days = from_arrow(pa.schema({"k": pa.int64(), str(label): pa.date32()}), ["k"])
    with pytest.raises(SchemaMismatch, match="row 1: '2020-01-01 05:00:00'"):
        to_batches(frame, days)
    made = definition_of(frame, ["k"]).schema
    assert made.by_name[str(label)].type == pa.timestamp("us")
    (batch,) = to_batches(frame, made)
    assert batch.column(1).to_pylist() == [dt.datetime(2020, 1, 1), MOMENT]


def test_categories_become_their_values():
    times = pd.to_datetime(pd.Series(["2020-01-01", "2020-01-02"]))
    for values, kind in (([3, 4], "int64"), (["a", "b"], "string"), ([0.5, 1.5], "double"),
                         (times, "timestamp[us]")):  # fmt: skip
        frame = pd.DataFrame({"k": [1, 2, 3], "v": pd.Categorical([*values, None])})
        assert types_of(frame)["v"] == kind
        (batch,) = to_batches(frame, definition_of(frame, ["k"]).schema)
        assert batch.column("v").to_pylist() == [*values, None]


def test_category_with_nanoseconds_is_refused_with_its_row():
    values = pd.Categorical([NS.floor("s"), NS.floor("s"), NS])
    with pytest.raises(SchemaMismatch, match=r"column 'v', row 2: .*cast them to microseconds"):
        definition_of(pd.DataFrame({"k": [1, 2, 3], "v": values}), ["k"])


def test_index_is_left_out_unless_requested_or_in_the_key():
    frame = pd.DataFrame(
        {"v": [1, 2]}, index=pd.MultiIndex.from_arrays([[5, 6], ["x", "y"]], names=["k", "n"])
    )
    made = definition_of(frame, ["k"])
    assert list(made.schema.by_name) == ["k", "v"]
    assert made.choices == ("index level 'n' is left out: index=True makes it a column",)
    (batch,) = to_batches(frame, made.schema)
    assert batch.to_pylist() == [{"k": 5, "v": 1}, {"k": 6, "v": 2}]
    whole = definition_of(frame, ["k"], index=True)
    assert (list(whole.schema.by_name), whole.choices) == (["k", "v", "n"], ())
    (batch,) = to_batches(frame, whole.schema)
    assert batch.to_pylist() == [{"k": 5, "v": 1, "n": "x"}, {"k": 6, "v": 2, "n": "y"}]
    plain = pd.DataFrame({"k": [1, 2]}, index=[7, 8])
    assert definition_of(plain, ["k"]).choices == ("index level 0 without a name is left out",)
    assert definition_of(plain.reset_index(drop=True), ["k"]).choices == ()
    for data, words in (
        (plain, "level 0 of the frame's index has no name"),
        ([{"k": 1}], "list has no index"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            definition_of(data, ["k"], index=True)


def test_definition_names_every_type_that_differs_from_the_data():
    frame = pl.DataFrame({"k": pl.Series([1], dtype=pl.UInt8), "t": [MOMENT], "v": [0.5]}).with_columns(
        pl.col("t").cast(pl.Datetime("ns")))  # fmt: skip
    made = definition_of(frame, ["k"])
    assert made.choices == (
        "column 'k': uint8 is stored as int16",
        "column 't': timestamp[ns] is stored as timestamp[us]",
    )
    assert [c.type for c in made.schema.columns] == [pa.int16(), pa.timestamp("us"), pa.float64()]


class Again:
    """An iterable of data, as a write takes it, which can be read more than once."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


def test_every_form_of_data_that_is_writable_defines_a_table():
    frame = pd.DataFrame({"k": np.array([1, 2], np.uint8), "v": [1, 2]})
    other = pd.DataFrame({"k": np.array([3], np.uint16), "v": [0.5], "w": ["x"]})
    nulls = pa.table({"k": [4], "w": pa.nulls(1)})
    for data in (
        [frame, other, nulls],
        (frame, other, nulls),
        Again(frame, {"k": 300}, other, nulls),
    ):
        made = definition_of(data, ["k"]).schema
        assert [c.type for c in made.columns][1:] == [pa.float64(), pa.string()]
        assert made.by_name["k"].type in (pa.int32(), pa.int64())
    table = pa.table({"k": [1]})
    for streamed in (
        table.to_reader(),
        pyarrow.dataset.dataset(table),
        duckdb.sql("select 1::bigint as k"),
    ):
        assert types_of(streamed) == {"k": "int64"}
    assert table.equals(table.to_reader().read_all())
    money = [
        pa.table({"k": [1], "v": [Decimal("1.25")]}),
        pa.table({"k": [1], "v": [Decimal("1000")]}),
    ]
    assert types_of(money)["v"] == "decimal128(6, 2)"


def test_iterator_is_refused_and_not_read():
    rows = ({"k": k} for k in range(3))
    with pytest.raises(InvalidArgument, match=r"generator.*pass its first part"):
        definition_of(rows, ["k"])
    assert next(rows) == {"k": 0}


def test_stream_that_defines_a_table_keeps_its_rows():
    reader = pa.table({"k": [1, 2]}).to_reader()
    definition_of(reader, ["k"])
    assert reader.read_all().num_rows == 2


def test_column_named_twice_is_refused():
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["k", "k"])
    with pytest.raises(InvalidArgument, match="'k' is named twice"):
        definition_of(twice.to_reader(), ["k"])
