"""Batches that a task gives to Spark: larger ones of the same rows, and rows without values."""

import pyarrow as pa
import pytest

from nyala.spark.batches import combined, empty_rows

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def batch(first: int, count: int) -> pa.RecordBatch:
    keys = range(first, first + count)
    return pa.RecordBatch.from_pylist([{"k": k, "s": f"{k:010d}"} for k in keys], SCHEMA)


def test_batches_are_combined_by_rows_in_their_order():
    small = [batch(10 * n, 10) for n in range(7)]
    found = list(combined(small, rows=25))
    assert [b.num_rows for b in found] == [30, 30, 10]
    assert pa.Table.from_batches(found).column("k").to_pylist() == list(range(70))
    assert list(combined([])) == []


def test_batches_are_combined_by_bytes():
    small = [batch(100 * n, 100) for n in range(6)]
    found = list(combined(small, size=2 * small[0].nbytes))
    assert [b.num_rows for b in found] == [200, 200, 200]


@pytest.mark.parametrize("count", [0, 1, 24, 25, 51])
def test_rows_without_values_have_the_wanted_number(count):
    found = list(empty_rows(count, SCHEMA, rows=25))
    assert sum(b.num_rows for b in found) == count
    assert all(b.num_rows <= 25 and b.schema == SCHEMA for b in found)
    assert all(b.column(0).null_count == b.num_rows for b in found)
