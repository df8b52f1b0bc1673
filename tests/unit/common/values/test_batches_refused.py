"""User data that is malformed, too large or not exactly representable: refused with row and column."""

from datetime import UTC
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.values.casting import exact_cast
from tests.unit.common.support.batch_shapes import (
    KEY,
    NOON,
    SCHEMA,
    TABLE,
    Stream,
    column,
    extended,
)


@pytest.mark.parametrize(
    ("name", "array", "row", "words"),
    [
        ("v", pa.array([1, 2, 2**31]), 2, "2147483648 does not convert without loss"),
        ("v", pa.array([1.0, 1.5]), 1, "1.5 does not convert"),
        ("v", pa.array([1.0, None, float("nan")]), 2, "nan does not convert"),
        ("v", pa.chunked_array([[1, 2], [3, 2**40]]), 3, "does not convert"),
        ("v", pa.array([1, 2**40]).dictionary_encode(), 1, "does not convert"),
        ("g", pa.array([0, 2**53 + 1]), 1, "9007199254740993 does not convert"),
        ("f", pa.array([0.5, 0.1]), 1, "0.1 does not convert"),
        ("f", pa.array([0.5, 1e300]), 1, "1e+300 does not convert"),
        ("d", pa.array([Decimal("1.50"), Decimal("1.555")]), 1, "1.555 does not convert"),
        ("d", pa.array([9_999, 10_000]), 1, "10000 does not convert"),
        ("t", pa.array([1_000, 1], pa.timestamp("ns")), 1, "does not convert"),
        ("t", pa.array([0, 2**61], pa.timestamp("s")), 1, "does not convert"),
    ],
    ids=str,
)
def test_lossy_values_are_refused_with_their_row(name, array, row, words):
    with pytest.raises(SchemaMismatch) as caught:
        column(array, name)
    assert caught.value.message.startswith(f"column {name!r}, row {row}: ")
    assert words in caught.value.message
    assert caught.value.details == {"row": str(row)}


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("v", pa.array(["1"]), "has type string, but the table stores int32"),
        ("v", pa.array([True]), "has type bool"),
        ("b", pa.array([1]), "has type int64"),
        ("x", pa.array(["a"]), "has type string"),
        ("d", pa.array([0.5]), "binary fractions are not decimal ones"),
        ("g", pa.array([Decimal("0.5")]), "decimal fractions are not binary ones"),
        ("z", pa.array([NOON]), "without a time zone does not name a moment"),
        ("t", pa.array([NOON.replace(tzinfo=UTC)]), "stores no time zone"),
        ("day", pa.array([NOON]), "has type timestamp[us]"),
        ("t", pa.array([5]), "has type int64"),
        ("v", pa.array([[1]]), "has type list"),
        ("v", pa.array([{"a": 1}]), "has type struct"),
        ("t", pa.array([5], pa.duration("us")), "has type duration"),
        (
            "v",
            pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int32())),
            "has type map<string, int32>",
        ),
        ("v", pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]), "sparse_union"),
        ("v", pa.DictionaryArray.from_arrays(pa.array([0]), pa.array([[1]])), "has type list"),
        ("v", extended(pa.array([1], pa.int32())), "has type extension<"),
        (
            "x",
            pa.ExtensionArray.from_storage(pa.uuid(), pa.array([b"u" * 16], pa.binary(16))),
            "uuid",
        ),
        ("t", pa.array([5], pa.time64("us")), "has type time64[us]"),
    ],
    ids=str,
)
def test_inconvertible_types_are_refused(name, array, words):
    with pytest.raises(SchemaMismatch) as caught:
        column(array, name)
    assert caught.value.message.startswith(f"column {name!r} has type ")
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**KEY, "v": 2**70}], "column 'v', row 0: '1180591620717411303424'"),
        ([KEY | {"v": 1}, KEY | {"v": "x"}], "column 'v', row 1: 'x' of type str"),
        (
            [KEY | {"f": 0.1}, KEY | {"f": 1e300}],
            "column 'f', row 1: '1e+300' of type float does not convert to float",
        ),
        ([KEY | {"s": "\ud800"}], "column 's', row 0"),
        ([KEY | {"z": NOON}, KEY | {"z": NOON.replace(tzinfo=UTC)}], "column 'z', row 0"),
        ([KEY | {"t": NOON.replace(tzinfo=UTC)}, KEY | {"t": NOON}], "column 't', row 0"),
        ([KEY | {"z": NOON.replace(tzinfo=UTC)}, KEY | {"z": NOON}], "column 'z', row 1"),
        ([KEY | {"v": object()}], "of type object does not convert"),
        ([KEY | {"nope": 1}], "no column 'nope'; its columns are: k, s, v"),
        ([{"k": 1}], "has no key column 's'; it has: k"),
        ([{}], "has no key column 'k'"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_mismatched_dicts_are_refused(rows, words):
    with pytest.raises(SchemaMismatch) as caught:
        to_batches(rows, SCHEMA)
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "a int is not table data; pass an Arrow table"),
        (None, "a NoneType is not table data"),
        ("abc", "a str is not table data"),
        (KEY, "a dict is not table data"),
        ([KEY, 5], "row 1 is a int, not a dict"),
        ([KEY | {5: 1}], "a column name is a str, not 5"),
        (pl.Series([1]), "cannot be read as a table"),
        (pl.LazyFrame({"k": [1]}), "a LazyFrame is not table data; call .collect()"),
        (pa.table([[1], [1], [2]], names=["k", "k", "s"]), "'k' appears twice in the data"),
        (pd.DataFrame({"k": [1], "s": [object()]}), "cannot be read as a table"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_non_tabular_input_is_refused(data, words):
    with pytest.raises(InvalidArgument) as caught:
        to_batches(data, SCHEMA)
    assert words in caught.value.message


def strings(kind, data, *offsets):
    width = np.int64 if kind == pa.large_string() else np.int32
    buffers = [None, pa.py_buffer(np.array(offsets, width)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def raw_decimal(kind, value):
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(value.to_bytes(16, "little"))])


MALFORMED = {
    "offsets beyond the buffer": ("s", strings(pa.string(), b"abc", 0, 5000, 3)),
    "offsets that go back": ("s", strings(pa.string(), b"abc", 0, 3, 1)),
    "no UTF-8": ("s", strings(pa.string(), b"\xff", 0, 1)),
    "no UTF-8, large": ("s", strings(pa.large_string(), b"a\xc3", 0, 1, 2)),
    "no UTF-8 in a dictionary": (
        "s", pa.DictionaryArray.from_arrays(pa.array([0]), strings(pa.string(), b"\xff", 0, 1)),
    ),
    "beyond its dictionary": (
        "s", pa.DictionaryArray.from_arrays(pa.array([5]), pa.array(["a"]), safe=False),
    ),
    "before its dictionary": (
        "s", pa.DictionaryArray.from_arrays(pa.array([-1]), pa.array(["a"]), safe=False),
    ),
    "decimal beyond its precision": ("d", raw_decimal(pa.decimal128(6, 2), 10**6)),
    "decimal of 39 digits": ("d", raw_decimal(pa.decimal128(38, 2), 10**38)),
    "date in the middle of a day": ("day", pa.array([1], pa.date64())),
}  # fmt: skip


@pytest.mark.parametrize("what", MALFORMED)
def test_malformed_arrow_data_is_refused_before_it_is_used(what):
    name, bad = MALFORMED[what]
    fill = {"k": pa.array(range(len(bad))), "s": pa.array(["a"] * len(bad))}
    data = pa.RecordBatch.from_pydict({**fill, name: bad})
    for shape in (data, Stream(pa.Table.from_batches([data]))):
        with pytest.raises(InvalidArgument, match="cannot be read as a table"):
            to_batches(shape, SCHEMA)


def test_missing_and_duplicate_columns_are_refused():
    nothing: object
    for nothing in (
        TABLE.to_batches()[0].select([]),
        [dict[str, int]()],
        pd.DataFrame(index=[1, 2]),
    ):
        with pytest.raises(SchemaMismatch, match="has no key column 'k'"):
            to_batches(nothing, SCHEMA)
    twice = pa.RecordBatch.from_arrays(
        [*TABLE.to_batches()[0].columns, pa.array([1, 2])], list("vskv")
    )
    for data in (twice, Stream(pa.Table.from_batches([twice]))):
        with pytest.raises(InvalidArgument, match="'v' appears twice in the data"):
            to_batches(data, SCHEMA)


def test_row_positions_count_from_start_of_whole_input():
    values = pa.chunked_array([[1, 2**40]])
    with pytest.raises(SchemaMismatch, match="column 'v', row 1001: 1099511627776") as caught:
        exact_cast(values, pa.int32(), "column 'v'", first_row=1000)
    assert caught.value.details == {"row": "1001"}
