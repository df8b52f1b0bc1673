"""Merging of ordered streams, and results of writes."""

import itertools
import random

import pyarrow as pa
import pytest

from nyala.client.read.ordered_merge import last_key, sort_by_key
from nyala.client.results import RowErrors, WriteResult, errors_table
from nyala.common.schema import from_arrow
from tests.unit.client.support.driving import merged as merged_streams

SCHEMA = from_arrow(
    pa.schema([("a", pa.string()), ("n", pa.int64()), ("v", pa.int64())]), ["a", "n"]
)


def batch(rows):
    columns = list(zip(*rows, strict=True)) if rows else [(), (), ()]
    return pa.record_batch(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA.arrow, strict=True)],
        schema=SCHEMA.arrow,
    )


@pytest.mark.parametrize("seed", range(20))
def test_ordered_merge_returns_one_sorted_stream(seed):
    """The reference concatenates all streams and sorts; there are empty batches and streams."""
    rng = random.Random(seed)
    everything, streams = [], []
    for _ in range(rng.randrange(1, 6)):
        rows = sorted(
            (rng.choice(["", "a", "a\0", "b", "zz"]), rng.randrange(-50, 50), rng.randrange(9))
            for _ in range(rng.randrange(0, 40))
        )
        everything += rows
        cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(4))
        ends = [0, *cuts, len(rows)]
        streams.append(iter([batch(rows[i:j]) for i, j in itertools.pairwise(ends)]))
    merged = [r for b in merged_streams(SCHEMA, streams) for r in b.to_pylist()]
    found = [(r["a"], r["n"]) for r in merged]
    assert found == sorted((a, n) for a, n, _ in everything)
    assert sorted((r["a"], r["n"], r["v"]) for r in merged) == sorted(everything)


def test_ordered_merge_memory_is_bounded():
    """Rows are returned as soon as no stream can have smaller ones."""
    taken = []

    def stream(name, starts):
        for start in starts:
            taken.append((name, start))
            yield batch([("k", n, 0) for n in range(start, start + 10)])

    merged = merged_streams(SCHEMA, [stream("x", [0, 100, 200]), stream("y", [50, 150, 250])])
    assert next(merged).column("n").to_pylist() == list(range(10))
    assert taken == [("x", 0), ("y", 50)]


def test_ordered_merge_uses_encoded_key_order():
    assert last_key(SCHEMA, batch([("a", -1, 0)])) < last_key(SCHEMA, batch([("a", 0, 0)]))
    assert last_key(SCHEMA, batch([("a", 9, 0)])) < last_key(SCHEMA, batch([("a\0", -9, 0)]))
    table = pa.Table.from_batches([batch([("b", 1, 1), ("a", 2, 2), ("a", -2, 3)])])
    assert sort_by_key(SCHEMA, table).column("v").to_pylist() == [3, 2, 1]


def test_row_errors_are_a_table_and_can_be_raised():
    found = errors_table([(3, "not_found", "no such row")] * 7)
    result = WriteResult(5, found, 17)
    with pytest.raises(RowErrors, match=r"7 of 12 rows had no effect: row 3: not_found") as caught:
        result.raise_for_errors()
    assert "and 2 more in .errors" in str(caught.value)
    assert caught.value.errors is found
    assert found.schema.names == ["row", "code", "message"]


def test_result_without_row_errors_is_returned_by_raise_for_errors():
    result = WriteResult(5, errors_table([]), 17)
    assert result.raise_for_errors() is result
    assert result.errors.schema == errors_table([(1, "a", "b")]).schema
