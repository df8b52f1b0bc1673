"""Dates and times beyond the years 1 to 9999 are stored like all others, and Python has no type for them.

Look-ups and listings return `FarTime` for them, errors print them, and definitions store them.
"""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from nyala.client.alter import AlterSteps
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.partitioning.partition import KeyRange, PartitionSchema, TabletPartition, describe
from nyala.common.partitioning.partition_spec import Partition as Spec
from nyala.common.partitioning.partition_spec import Range, resolve
from nyala.common.schema import from_arrow
from nyala.common.values.far_times import FarTime
from nyala.common.values.plain_rows import RowReader, encode_rows, plain_value
from nyala.common.values.python_values import list_of, python_of
from tests.unit.master.support.ddl_cluster import with_cluster

MOMENT, ZONED = pa.timestamp("us"), pa.timestamp("us", "UTC")
FAR: dict[str, list[pa.Scalar]] = {
    "moment": [pa.scalar(2**62, MOMENT), pa.scalar(-(2**62), MOMENT)],
    "zoned": [pa.scalar(2**62, ZONED), pa.scalar(-62_135_614_800_000_000, ZONED)],
    "day": [pa.scalar(d, pa.int32()).cast(pa.date32()) for d in (2**31 - 1, -(2**31))],
}
EVERY = [value for values in FAR.values() for value in values]
TABLE = from_arrow(
    pa.schema([("k", pa.int64()), ("moment", MOMENT), ("zoned", ZONED), ("day", pa.date32())]),
    ["k"],
)


def same(found: Any, value: pa.Scalar) -> bool:
    return isinstance(found, FarTime) and bool(found.scalar.equals(value))


@pytest.mark.parametrize("value", EVERY, ids=lambda v: f"{v.type} {v.value}")
def test_lookup_and_list_return_far_times(value):
    raw = encode_rows([[1, plain_value(value)]])
    (row,) = RowReader(["k", "v"], [pa.int64(), value.type]).read(raw, 1)
    assert row is not None
    assert row["k"] == 1
    assert same(row["v"], value)
    near = pa.scalar(0, pa.int32()).cast(pa.date32()).cast(value.type)
    listed = list_of(pa.array([near, value, None], value.type))
    assert listed[0] == near.as_py()
    assert same(listed[1], value)
    assert listed[2] is None


@pytest.mark.parametrize("value", EVERY, ids=lambda v: f"{v.type} {v.value}")
def test_errors_show_far_time(value):
    keyed = from_arrow(pa.schema([("at", value.type)]), ["at"])
    text = str(python_of(value))
    numbered = from_arrow(pa.schema([("at", pa.int64())]), ["at"])
    with pytest.raises(InvalidArgument, match=r"range end of column 'at'.*" + text[:6]):
        resolve(Spec(range=Range(["at"], [(value, None)])), numbered)
    with pytest.raises(InvalidArgument, match="has 2 values for 1 columns"):
        resolve(Spec(range=Range(["at"], [((value, value), None)])), keyed)
    with pytest.raises(InvalidArgument):
        resolve(Spec(range=Range(["at"], [(value, value)])), keyed)
    with pytest.raises(SchemaMismatch, match="row 1"):
        to_batches([{"k": 1}, {"k": value}], TABLE)


def test_far_date_among_timestamps_is_refused_by_row():
    days = pa.table({"k": [1, 2], "moment": pa.array([None, FAR["day"][0]], pa.date32())})
    with pytest.raises(SchemaMismatch, match=f"row 1: {2**31 - 1} does not convert"):
        to_batches(days, TABLE)


@pytest.mark.parametrize("value", EVERY, ids=lambda v: f"{v.type} {v.value}")
def test_range_bounds_with_far_times_are_described(value):
    keyed = from_arrow(pa.schema([("at", value.type)]), ["at"])
    made = resolve(Spec(range=Range(["at"], [(value, None)])), keyed)
    (one,) = made.ranges
    assert isinstance(one, KeyRange)
    assert isinstance(made, PartitionSchema)
    assert describe(keyed, made, TabletPartition((), one)) == f"{python_of(value)} <= at"


def test_masters_accept_far_times_as_defaults():
    async def work(ddl):
        table = await ddl.create()
        added = [(name, values[0]) for name, values in FAR.items()]
        steps = AlterSteps(table)
        for name, value in added:
            steps.add_column(name, value.type, default=value)
            steps.add_column(f"{name} 2", value.type)
            steps.set_default(f"{name} 2", value)
        made = await ddl.core.ddl.alter_table(table, steps.steps)
        for name, value in added:
            for column in (name, f"{name} 2"):
                assert made.schema.column(column).default.equals(value)

    with_cluster(work)


@pytest.mark.parametrize(
    "values",
    [
        [pd.NaT, pd.Timestamp("2020-01-01"), pd.NaT],
        [pd.Timestamp("2020-01-01"), None, pd.NaT],
        [pd.Timestamp("2020-01-01"), pd.NaT],
    ],
)
def test_missing_pandas_time_is_null(values):
    zoned = [v if v is None or v is pd.NaT else v.tz_localize("UTC") for v in values]
    days = [v if v is None or v is pd.NaT else v.date() for v in values]
    for name, given in (("moment", values), ("zoned", zoned), ("day", days)):
        rows = [{"k": n, name: value} for n, value in enumerate(given)]
        (batch,) = to_batches(rows, TABLE)
        expected = [None if v is None or v is pd.NaT else v for v in given]
        assert batch.column(name).to_pylist() == expected


@pytest.mark.parametrize(
    "null", [pd.NaT, pd.NA, np.datetime64("NaT", "us"), pa.scalar(None, MOMENT)]
)
def test_null_is_refused_as_range_bound_and_default(null):
    keyed = from_arrow(pa.schema([("at", MOMENT)]), ["at"])
    with pytest.raises(InvalidArgument, match="is null; give a value"):
        resolve(Spec(range=Range(["at"], [(null, None)])), keyed)
    with pytest.raises(InvalidArgument, match="is null; give a value"):
        from_arrow(
            pa.schema([("k", pa.int64()), pa.field("at", MOMENT, nullable=False)]),
            ["k"],
            defaults={"at": null},
        )
