"""Merges of tablets by key return what a sort of all rows returns, for keys of every type."""

import itertools
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.schema import from_arrow
from tests.unit.client.support.driving import merged as merged_streams

TEXTS = st.text(st.sampled_from(["a", "b", "\0", "\x01", "é", "\U0001f600"]), max_size=4)
INTS = st.integers(-3, 3) | st.integers(-(1 << 31), (1 << 31) - 1)
KEYS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): INTS,
    pa.int64(): INTS | st.integers(-(1 << 63), (1 << 63) - 1),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=3),
    pa.timestamp("us", "UTC"): INTS,
    pa.date32(): INTS,
}


@st.composite
def tablets(draw: st.DrawFn) -> tuple[pa.Schema, list[str], list[list[pa.RecordBatch]]]:
    """Rows with distinct keys in several tablets, each cut into sorted batches, some of them empty."""
    types = draw(st.lists(st.sampled_from(list(KEYS)), min_size=1, max_size=3))
    names = [f"k{n}" for n in range(len(types))]
    schema = pa.schema([*zip(names, types, strict=True), ("v", pa.int64())])
    keys = draw(st.lists(st.tuples(*(KEYS[t] for t in types)), max_size=60, unique=True))
    places = draw(st.lists(st.integers(0, 4), min_size=len(keys), max_size=len(keys)))
    streams = []
    for place in range(5):
        rows = [
            (*key, n) for n, (key, at) in enumerate(zip(keys, places, strict=True)) if at == place
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(c, pa.int64()).cast(pa.int32()).cast(f.type)
                  if pa.types.is_date(f.type) else pa.array(c, f.type)
                  for c, f in zip(columns, schema, strict=True)]  # fmt: skip
        table = pa.table(arrays, schema=schema).sort_by([(n, "ascending") for n in names])
        whole = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema)]
        cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=4)))
        ends = itertools.pairwise([0, *cuts, len(rows)])
        streams.append([whole[0].slice(begin, end - begin) for begin, end in ends])
    return schema, names, streams


@given(tablets())
def test_merge_by_key_equals_a_sort(made):
    schema, names, streams = made
    merged = pa.Table.from_batches(merged_streams(from_arrow(schema, names), streams), schema)
    everything = pa.Table.from_batches([b for s in streams for b in s], schema)
    assert merged.equals(everything.sort_by([(n, "ascending") for n in names]))
