"""Columns of Python objects in a pandas frame: stored exactly or refused, as in a list of dicts."""

import datetime as dt
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nyala.common.batches import to_batches
from nyala.common.errors import SchemaMismatch
from nyala.common.frames import definition_of
from nyala.common.schema import from_arrow

DAY, MOMENT = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1, 5)
UTC = MOMENT.replace(tzinfo=dt.UTC)
SUB_MICROSECOND = pd.Timestamp("2020-01-01 00:00:00.000000001")
TABLE = from_arrow(
    pa.schema([("k", pa.int64()), ("i", pa.int64()), ("g", pa.float64()), ("d", pa.date32()),
               ("t", pa.timestamp("us")), ("z", pa.timestamp("us", "UTC")), ("m", pa.decimal128(9, 2)),
               ("x", pa.binary()), ("s", pa.string())]),
    ["k"],
)  # fmt: skip


def stored(name, values):
    frame = pd.DataFrame({"k": range(len(values)), name: pd.Series(values, dtype=object)})
    (batch,) = to_batches(frame, TABLE)
    return batch.column(name).to_pylist()


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("t", [DAY, MOMENT], [dt.datetime(2020, 1, 1), MOMENT]),
        ("g", [np.float16(0.5), 7], [0.5, 7.0]),
        ("i", [1, np.nan, None, pd.NA], [1, None, None, None]),
        ("t", [MOMENT, pd.NaT, np.nan], [MOMENT, None, None]),
        ("m", [Decimal("1.5"), 2, np.nan], [Decimal("1.50"), Decimal("2.00"), None]),
        ("s", ["a", np.nan, None], ["a", None, None]),
    ],
)
def test_representable_objects_are_stored_exactly(name, values, expected):
    assert stored(name, values) == expected


@pytest.mark.parametrize(
    ("name", "values", "row"),
    [
        ("d", [DAY, MOMENT], 1),
        ("i", [np.float16(0.5), 7], 0),
        ("t", [SUB_MICROSECOND], 0),
        ("t", [pd.NaT, SUB_MICROSECOND], 1),
        ("z", [UTC, MOMENT], 1),
        ("x", [b"a", "b"], 1),
    ],
)
def test_lossy_object_values_are_refused_with_row(name, values, row):
    with pytest.raises(SchemaMismatch, match=f"column '{name}', row {row}"):
        stored(name, values)


def test_object_index_is_checked_as_well():
    table = from_arrow(pa.schema([("t", pa.timestamp("us")), ("v", pa.int64())]), ["t"])
    index = pd.Index([DAY, MOMENT], dtype=object, name="t")
    (batch,) = to_batches(pd.DataFrame({"v": [1, 2]}, index=index), table)
    assert batch.column("t").to_pylist() == [dt.datetime(2020, 1, 1), MOMENT]


def test_frame_mixing_dates_and_timestamps_has_a_timestamp_column():
    frame = pd.DataFrame({"k": [1, 2], "d": pd.Series([DAY, MOMENT], dtype=object)})
    schema = definition_of(frame, ["k"]).schema
    (batch,) = to_batches(frame, schema)
    assert batch.column("d").to_pylist() == [dt.datetime(2020, 1, 1), MOMENT]
