"""Every stored value, also at the ends of its type and beside nulls, survives a frame and its write."""

import datetime as dt
from decimal import Decimal
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.client.feed.change_batch import ChangeBatch
from nyala.client.read.pandas_types import to_pandas
from nyala.client.sql.query import run_sql
from nyala.common.batches import to_batches
from nyala.common.errors import SchemaMismatch
from nyala.common.schema import from_arrow
from tests.properties.support.type_ends import ENDS, NAN, any_values, bits, table_with
from tests.unit.client.support.sql_tables import TablesInMemory, table_of

NUMPY_NULL = {
    pa.date32(): -(2**31),
    pa.timestamp("us"): -(2**63),
    pa.timestamp("us", "UTC"): -(2**63),
}


def from_sql(table: pa.Table) -> pa.Table:
    return run_sql("select * from t", TablesInMemory({"t": table_of(table, "k")}))


FORMS: dict[str, Any] = {
    "arrow": lambda table: table,
    "pandas": to_pandas,
    "pandas of a change": lambda t: ChangeBatch(t.combine_chunks().to_batches()[0], 1).to_pandas(),
    "polars": pl.from_arrow,
    "sql": from_sql,
    "pandas of sql": lambda table: from_sql(table).to_pandas(),
}


def written(frame: Any, kind: pa.DataType) -> pa.Table:
    schema = from_arrow(pa.schema({"k": pa.int64(), "v": kind}), ["k"])
    return pa.Table.from_batches(to_batches(frame, schema))


def check(form: str, values: list[Any], kind: pa.DataType) -> None:
    table = table_with(values, kind)
    again = written(FORMS[form](table), kind)
    assert bits(again["v"]) == bits(table["v"])
    assert again.schema.field("v").type == kind


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ENDS, ids=str)
def test_ends_of_types_survive_a_frame_and_its_write(kind, form):
    for values in (ENDS[kind], [None, *ENDS[kind]], *([v, None] for v in ENDS[kind])):
        check(form, values, kind)
    check(form, [None, None], kind)


@pytest.mark.parametrize("form", [f for f in FORMS if "sql" not in f])
@pytest.mark.parametrize("kind", NUMPY_NULL, ids=str)
def test_number_that_numpy_takes_for_null_survives(kind, form):
    check(form, [NUMPY_NULL[kind], None], kind)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_values_survive_a_frame_and_its_write(data):
    kind = data.draw(st.sampled_from(list(ENDS)))
    form = data.draw(st.sampled_from([f for f in FORMS if "sql" not in f]))
    check(form, data.draw(st.lists(any_values(kind), min_size=1, max_size=5)), kind)


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, 2], pa.int64(), "int64"),
        ([1, None], pa.int64(), "Int64"),
        ([1, None], pa.int8(), "Int8"),
        ([0.5, None], pa.float64(), "float64"),
        ([0.5, NAN], pa.float64(), "double[pyarrow]"),
        ([True, False], pa.bool_(), "bool"),
        ([True, None], pa.bool_(), "boolean"),
        (["a", None], pa.string(), "object"),
        ([dt.date(2026, 1, 1), None], pa.date32(), "object"),
        ([2**31 - 1], pa.date32(), "date32[day][pyarrow]"),
        ([dt.datetime(2026, 1, 1), None], pa.timestamp("us"), "datetime64[us]"),
        ([0, None], pa.timestamp("us", "UTC"), "datetime64[us, UTC]"),
        ([Decimal(7), None], pa.decimal128(5, 2), "object"),
    ],
)
def test_pandas_types_are_those_of_the_page(values, kind, expected):
    table = table_with(values, kind)
    assert str(to_pandas(table)["v"].dtype) == expected
    assert str(from_sql(table).to_pandas()["v"].dtype) == expected
    assert str(to_pandas(table)["k"].dtype) == "int64"


def test_columns_of_one_name_in_sql_keep_their_integers():
    both = "select t.v, u.v from t, t u where u.k = t.k order by t.k"
    tables = TablesInMemory({"t": table_of(table_with([2**53 + 1, None], pa.int64()), "k")})
    frame = run_sql(both, tables).to_pandas()
    assert [frame.iloc[0, n] for n in (0, 1)] == [2**53 + 1] * 2


def test_integers_before_a_change_keep_their_digits():
    before = pa.array([{"v": 2**53 + 1}, {"v": None}])
    frame = ChangeBatch(pa.record_batch({"k": [1, 2], "_before": before}), 1).to_pandas()
    assert frame["_before"][0] == {"v": 2**53 + 1}


@pytest.mark.parametrize("number", [2.0**53, -(2.0**53), 2.0**60])
def test_float_that_stands_for_several_integers_is_refused_in_every_form(number):
    """pandas makes such floats of integers beside nulls: which integer was meant is unknown."""
    plain = table_with([number, None], pa.float64())
    for frame in (plain, plain.to_pandas(), pl.from_arrow(plain), [{"k": 0, "v": number}]):
        with pytest.raises(
            SchemaMismatch, match=r"column 'v', row 0: .*stands for several integers"
        ):
            written(frame, pa.int64())
    single = table_with([2.0**24], pa.float32())
    with pytest.raises(SchemaMismatch, match="stands for several integers"):
        written(single, pa.int64())
    exact = pd.DataFrame({"k": [0, 1], "v": [2.0**53 - 1, NAN]})
    assert written(exact, pa.int64())["v"].to_pylist() == [2**53 - 1, None]


def test_chunks_of_categories_of_which_some_are_empty_are_written():
    none = pa.DictionaryArray.from_arrays(
        pa.array([None, None], pa.int32()), pa.array([], pa.string())
    )
    parts = [pa.array(v, pa.string()).dictionary_encode() for v in ([], ["x", "y"], ["y", None])]
    table = pa.table({"k": range(6), "v": pa.chunked_array([*parts, none])})
    assert written(table, pa.string())["v"].to_pylist() == ["x", "y", "y", None, None, None]


@pytest.mark.parametrize("kind", ENDS, ids=str)
def test_slices_of_a_frame_are_written_alone(kind):
    table = table_with([None, *ENDS[kind], None, *ENDS[kind]], kind)
    for first, count in ((1, 2), (3, 3), (len(table) - 1, 1)):
        part = table.slice(first, count)
        for frame in (part, pl.from_arrow(table).slice(first, count), part.to_reader()):
            assert bits(written(frame, kind)["v"]) == bits(part["v"])


def test_sums_of_64_bit_integers_in_sql_are_exact():
    tables = TablesInMemory({"t": table_of(table_with([2**63 - 1, 2**63 - 2], pa.int64()), "k")})
    frame = run_sql("select sum(v) as total from t", tables).to_pandas()
    assert frame["total"].tolist() == [Decimal(2**64 - 3)]
