"""Keys and rows as plain Python values beside the general way: the same bytes, partitions and values."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nyala.common.errors import Unavailable
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import encode_keys
from nyala.common.partitioning.partition import HashLevel, KeyRange, PartitionSchema, locate
from nyala.common.partitioning.plain_keys import PlainKeys
from nyala.common.schema import Column, Schema
from nyala.common.values.plain_rows import RowReader, encode_rows, plain_value

KINDS = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(1 << 63), (1 << 63) - 1),
    pa.string(): st.text(max_size=12),
    pa.binary(): st.binary(max_size=12),
}


def table(kinds: list[pa.DataType]) -> Schema:
    columns = tuple(Column(ColumnId(n), f"k{n}", k, False) for n, k in enumerate(kinds))
    return Schema(columns, tuple(c.id for c in columns))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_fast_path_keys_equal_general_encoding_and_partition(data):
    kinds = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3))
    schema = table(kinds)
    rows = data.draw(st.lists(st.tuples(*(KINDS[k] for k in kinds)), min_size=1, max_size=8))
    ids = schema.key_ids
    batch = pa.record_batch(
        [pa.array(c, k) for c, k in zip(zip(*rows, strict=True), kinds, strict=True)],
        names=[c.name for c in schema.columns],
    )
    encoded = encode_keys(batch.columns, kinds)
    first = encode_keys([batch.column(0)], kinds[:1])
    bounds = sorted({first.key_at(n) for n in range(len(rows))})
    ranges = data.draw(
        st.sampled_from(
            [
                (),
                (KeyRange(None, bounds[0]), KeyRange(bounds[0], None)),
                (KeyRange(bounds[0], bounds[-1]),) if len(bounds) > 1 else (KeyRange(bounds[0]),),
            ]
        )
    )
    levels = data.draw(
        st.sampled_from(
            [(), (HashLevel(ids, 5, 7),), (HashLevel(ids[:1], 3, 1), HashLevel(ids[-1:], 4, 2))]
        )
    )
    if len(levels) == 2 and len(ids) == 1:
        levels = levels[:1]
    ps = PartitionSchema(levels, ids[:1] if ranges else (), ranges)
    numbers = locate(schema, ps, batch)
    plain = PlainKeys(schema, ps)
    for n, row in enumerate(rows):
        key = dict(zip(batch.schema.names, row, strict=True))
        assert plain.find(key) == (int(numbers[n]), encoded.key_at(n))


def test_unusual_keys_use_general_path():
    plain = PlainKeys(table([pa.int8(), pa.string()]), PartitionSchema())
    assert plain.find({"k0": 1, "k1": "a"}) is not None
    for key in (
        {"k0": 128, "k1": "a"}, {"k0": True, "k1": "a"}, {"k0": None, "k1": "a"}, {"k0": 1},
        {"k0": 1, "k1": b"a"}, {"k0": 1, "k1": "\ud800"}, {"k0": 1, "k1": "a", "v": 2},
        {"k0": 1.0, "k1": "a"}, {"k0": 1, "x": "a"},
    ):  # fmt: skip
        assert plain.find(key) is None, key
    assert PlainKeys(table([pa.date32()]), PartitionSchema()).find({"k0": date(2020, 1, 1)}) is None


def test_fast_path_values_equal_arrow_values():
    kinds = {
        pa.bool_(): True, pa.int8(): -5, pa.int64(): -(1 << 63), pa.float32(): 0.25,
        pa.float64(): -1.5e300, pa.string(): "ä\0", pa.binary(): b"\xff\0",
        pa.date32(): date(1969, 12, 31), pa.timestamp("us"): datetime(1960, 1, 2, 3, 4, 5, 6),
        pa.timestamp("us", "UTC"): datetime(2024, 2, 29, tzinfo=UTC),
        pa.decimal128(38, 10): Decimal("-1234567890123456789012345678.0123456789"),
    }  # fmt: skip
    arrays = [pa.array([value, None], kind) for kind, value in kinds.items()]
    batch = pa.record_batch(arrays, names=[str(n) for n in range(len(arrays))])
    rows = [[plain_value(array[n]) for array in arrays] for n in range(2)]
    reader = RowReader(batch.schema.names, batch.schema.types)
    assert reader.read(encode_rows([*rows, None]), 3) == [*batch.to_pylist(), None]
    for raw, count in ((b"", 1), (b"\x90", 1), (encode_rows([[1]]), 1), (b"\xc1", 1)):
        with pytest.raises(Unavailable, match="cannot be read"):
            reader.read(raw, count)
