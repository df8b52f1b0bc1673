"""A frame that creates a table can be written to it and read back unchanged; others are refused by column."""

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.frames import definition_of

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
    schema = definition_of(frame, ["k"])
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
    return {c.name: str(c.type) for c in definition_of(frame, [key]).columns}


def test_frame_types_map_to_column_types():
    filtered = pd.DataFrame({"k": [1, 2], "u": np.array([1, 2], np.uint8)})[lambda f: f.k > 1]
    assert types_of(filtered) == {"k": "int64", "u": "int16"}
    assert types_of(pd.DataFrame({"v": [1]}, index=pd.Index([5], name="k"))) == {
        "k": "int64", "v": "int64",
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
    schema = definition_of(frame, ["k"])
    (batch,) = to_batches(frame, schema)
    assert batch.to_pylist() == [{"k": 1, "m": Decimal("1.5")}, {"k": 2, "m": None}]
