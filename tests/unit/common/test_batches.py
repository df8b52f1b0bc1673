"""User data: every accepted shape gives the same batches; what would lose something is refused."""

from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.common import schema as schemas
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument, SchemaMismatch
from tests.unit.common import calls

SCHEMA = schemas.from_arrow(
    pa.schema(
        [
            ("v", pa.int32()),
            ("k", pa.int64()),
            ("s", pa.string()),
            ("f", pa.float32()),
            ("g", pa.float64()),
            ("d", pa.decimal128(6, 2)),
            ("t", pa.timestamp("us")),
            ("z", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("b", pa.bool_()),
            ("x", pa.binary()),
        ]
    ),
    ["k", "s"],
)
ROWS = [{"k": 1, "s": "a", "v": 5}, {"k": 2, "s": "b", "v": None}]


def column(array, name):
    """Return one batch's column made of a user's array; the key is filled in."""
    table = pa.table({"k": np.arange(len(array)), "s": ["a"] * len(array), name: array})
    batches = to_batches(table, SCHEMA)
    return pa.concat_arrays([b.column(name) for b in batches])


class Own(pa.ExtensionType):  # type: ignore[misc]
    """A user's own type, stored as one that tables know."""

    def __init__(self, storage=None):
        super().__init__(storage or pa.int32(), "test.own")

    def __arrow_ext_serialize__(self):
        return b""


def extended(storage):
    return pa.ExtensionArray.from_storage(Own(storage.type), storage)


class Stream:
    """Data that only speaks the C stream interface."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


TABLE = pa.table({"v": pa.array([5, None], pa.int64()), "s": ["a", "b"], "k": [1, 2]})
SHAPES = {
    "dicts": ROWS,
    "tuple of dicts": tuple(ROWS),
    "table": TABLE,
    "batch": TABLE.to_batches()[0],
    "stream": Stream(TABLE),
    "reader": pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
    "sliced": pa.concat_tables([TABLE, TABLE, TABLE]).slice(2, 2),
    "chunked": pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "pandas": pd.DataFrame({"k": [1, 2], "s": ["a", "b"], "v": [5.0, np.nan]}),
    "pandas of objects": pd.DataFrame({"k": [1, 2], "s": ["a", "b"], "v": [5, None]}, dtype=object),
    "pandas with a key index": pd.DataFrame(
        {"v": [5.0, np.nan]},
        index=pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["k", "s"]),
    ),
    "filtered pandas": pd.DataFrame(
        {"k": [0, 1, 2], "s": ["", "a", "b"], "v": pd.array([0, 5, None], "Int16")}
    ).iloc[1:],
    "polars": pl.DataFrame({"k": [1, 2], "s": ["a", "b"], "v": [5, None]}),
    "polars categorical": pl.DataFrame(
        {"k": [1, 2], "s": ["a", "b"], "v": [5, None]}, schema_overrides={"s": pl.Categorical}
    ),
    "large and dictionary": TABLE.set_column(
        1, "s", pa.array(["a", "b"], pa.large_string()).dictionary_encode()
    ),
    "views": TABLE.set_column(1, "s", pa.array(["a", "b"], pa.string_view())),
    "run ends": TABLE.set_column(2, "k", pc.run_end_encode(pa.array([1, 2]))),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_gives_the_stored_types(shape):
    (batch,) = to_batches(SHAPES[shape], SCHEMA)
    assert batch.schema == schemas.arrow_schema([SCHEMA.column(n) for n in ("k", "s", "v")])
    assert batch.to_pylist() == ROWS
    batch.validate(full=True)


def test_no_rows_give_no_batch_but_columns_are_checked():
    assert to_batches([], SCHEMA) == []
    assert to_batches(TABLE.slice(0, 0), SCHEMA) == []
    with pytest.raises(SchemaMismatch):
        to_batches(TABLE.slice(0, 0).drop_columns("k"), SCHEMA)


def test_dicts_with_other_keys_begin_a_new_batch():
    rows = [
        {"k": 1, "s": "a"},
        {"s": "b", "k": 2},
        {"k": 3, "s": "c", "v": None},
        {"k": 4, "s": "d"},
    ]
    batches = to_batches(rows, SCHEMA)
    assert [b.schema.names for b in batches] == [["k", "s"], ["k", "s", "v"], ["k", "s"]]
    assert [b.num_rows for b in batches] == [2, 1, 1]
    with pytest.raises(SchemaMismatch, match="column 'v', row 3: 3000000000") as caught:
        to_batches([*rows[:3], {"k": 4, "s": "d", "v": 3_000_000_000}], SCHEMA)
    assert caught.value.details == {"row": "3"}


def test_extra_columns_come_last_as_they_are():
    data = TABLE.append_column("_op", pa.array(["insert", "delete"]))
    (batch,) = to_batches(data, SCHEMA, extra=["_op"])
    assert batch.schema.names == ["k", "s", "v", "_op"]
    assert batch.column("_op").to_pylist() == ["insert", "delete"]
    (batch,) = to_batches([{**r, "_op": "insert"} for r in ROWS], SCHEMA, extra=["_op"])
    assert batch.column("_op").to_pylist() == ["insert", "insert"]
    with pytest.raises(SchemaMismatch, match="no column '_op'"):
        to_batches(data, SCHEMA)
    with pytest.raises(SchemaMismatch, match="lacks the column '_op'"):
        to_batches(TABLE, SCHEMA, extra=["_op"])


DAY = date(2024, 2, 29)
NOON = datetime(2024, 2, 29, 12)


@pytest.mark.parametrize(
    ("name", "array", "expected"),
    [
        ("v", pa.array([7], pa.uint64()), [7]),
        ("v", pa.array([7.0, None]), [7, None]),
        ("v", pa.array([Decimal("7.00")]), [7]),
        ("v", pa.nulls(1), [None]),
        ("g", pa.array([2**53]), [2.0**53]),
        ("g", pa.array([0.1], pa.float32()), [float(np.float32(0.1))]),
        ("g", pa.array([1.5, None], pa.float16()), [1.5, None]),
        ("v", pa.array([7.0], pa.float16()), [7]),
        ("f", pa.array([0.5, None, float("inf")]), [0.5, None, float("inf")]),
        ("d", pa.array([1234, None]), [Decimal("1234.00"), None]),
        ("d", pa.array([Decimal("1.5")], pa.decimal256(50, 20)), [Decimal("1.50")]),
        ("t", pa.array([DAY]), [datetime(2024, 2, 29)]),
        ("t", pa.array([NOON], pa.timestamp("ns")), [NOON]),
        ("t", pa.array([NOON], pa.timestamp("s")), [NOON]),
        ("z", pa.array([NOON], pa.timestamp("ms", "Europe/Berlin")), [NOON.replace(tzinfo=UTC)]),
        ("day", pa.array([DAY], pa.date64()), [DAY]),
        ("x", pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        ("x", pa.array([b"ab"], pa.large_binary()), [b"ab"]),
        ("s", pa.array(["ü"], pa.large_string()), ["ü"]),
    ],
    ids=str,
)
def test_what_converts(name, array, expected):
    if name == "s":
        (batch,) = to_batches(pa.table({"k": [0], "s": array}), SCHEMA)
        assert batch.column("s").to_pylist() == expected
    else:
        assert column(array, name).to_pylist() == expected
        assert column(array, name).type == SCHEMA.column(name).type


ENCODED = {
    "a null in its dictionary": (
        "s", pa.DictionaryArray.from_arrays(pa.array([0, 1, 0, None]), pa.array(["a", None])),
    ),
    "nothing but nulls in its dictionary": (
        "s", pa.DictionaryArray.from_arrays(pa.array([0]), pa.nulls(1)),
    ),
    "other dictionaries in other chunks": (
        "s", pa.chunked_array([pa.array(some).dictionary_encode() for some in (["a", "b"], ["c", "a"])]),
    ),
    "sliced dictionary": ("s", pa.array(["a", "b", "c", "b"]).dictionary_encode().slice(1, 3)),
    "dictionary of views": (
        "s", pa.DictionaryArray.from_arrays(pa.array([1, None]), pa.array(["a" * 20, "b"], pa.string_view())),
    ),
    "sliced runs": ("v", pc.run_end_encode(pa.array([1, 1, 2, 2, None], pa.int32())).slice(1, 4)),
    "sliced views": ("s", pa.array(["a" * 20, "b", "c" * 20], pa.string_view()).slice(1, 2)),
    "sliced bits": ("b", pa.array([True, False, None, True]).slice(1, 3)),
    "sliced, of one size": ("x", pa.array([b"ab", b"cd", None], pa.binary(2)).slice(1, 2)),
    "chunks of one row and none": ("v", pa.chunked_array([[1], [], [2, None]], pa.int32())),
}  # fmt: skip


@pytest.mark.parametrize("how", ENCODED)
def test_encoded_chunked_and_sliced_columns_are_their_values(how):
    name, array = ENCODED[how]
    fill = {"k": np.arange(len(array)), "s": ["a"] * len(array)}
    batches = to_batches(pa.table({**fill, name: array}), SCHEMA)
    assert [v for b in batches for v in b.column(name).to_pylist()] == array.to_pylist()


def test_nan_survives():
    assert np.isnan(column(pa.array([1.5, float("nan")]), "f")[1].as_py())


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
        ("z", pa.array([NOON]), "unknown without a time zone"),
        ("t", pa.array([NOON.replace(tzinfo=UTC)]), "keeps no time zone"),
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
def test_types_that_never_convert(name, array, words):
    with pytest.raises(SchemaMismatch) as caught:
        column(array, name)
    assert caught.value.message.startswith(f"column {name!r} has type ")
    assert words in caught.value.message


KEY = {"k": 1, "s": "a"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{**KEY, "v": 2**70}], "column 'v', row 0: '1180591620717411303424'"),
        ([KEY | {"v": 1}, KEY | {"v": "x"}], "column 'v', row 1: 'x' of type str"),
        ([KEY | {"f": 0.1}, KEY | {"f": 1e300}], "column 'f', row 1: 1e+300 is beyond"),
        ([KEY | {"s": "\ud800"}], "column 's', row 0"),
        ([KEY | {"z": NOON}, KEY | {"z": NOON.replace(tzinfo=UTC)}], "row 0 has none"),
        ([KEY | {"t": NOON.replace(tzinfo=UTC)}, KEY | {"t": NOON}], "row 1 has none"),
        ([KEY | {"v": object()}], "of type object does not convert"),
        ([KEY | {"nope": 1}], "no column 'nope'; its columns are: k, s, v"),
        ([{"k": 1}], "lacks the key column 's'; it has: k"),
        ([{}], "lacks the key column 'k'"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_dicts_that_do_not_fit(rows, words):
    with pytest.raises(SchemaMismatch) as caught:
        to_batches(rows, SCHEMA)
    assert words in caught.value.message


def test_python_floats_become_the_nearest_32_bit_ones():
    (batch,) = to_batches([KEY | {"f": 0.1}, KEY | {"f": float("inf")}, KEY | {"f": None}], SCHEMA)
    assert batch.column("f").to_pylist() == [float(np.float32(0.1)), float("inf"), None]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (5, "a int is no table data; pass an Arrow table"),
        (None, "a NoneType is no table data"),
        ("abc", "a str is no table data"),
        (KEY, "a dict is no table data"),
        ([KEY, 5], "row 1 is a int, not a dict"),
        ([KEY | {5: 1}], "a column name is a str, not 5"),
        (pl.Series([1]), "cannot be read as a table"),
        (pl.LazyFrame({"k": [1]}), "a LazyFrame is no table data"),
        (pa.table([[1], [1], [2]], names=["k", "k", "s"]), "'k' is in the data twice"),
        (pd.DataFrame({"k": [1], "s": [object()]}), "cannot be read as a table"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_is_no_table(data, words):
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


def test_no_columns_and_columns_twice():
    for nothing in (pa.table({}), TABLE.to_batches()[0].select([]), pd.DataFrame(index=[1, 2])):
        with pytest.raises(SchemaMismatch, match="lacks the key column 'k'"):
            to_batches(nothing, SCHEMA)
    twice = pa.RecordBatch.from_arrays(
        [*TABLE.to_batches()[0].columns, pa.array([1, 2])], list("vskv")
    )
    for data in (twice, Stream(pa.Table.from_batches([twice]))):
        with pytest.raises(InvalidArgument, match="'v' is in the data twice"):
            to_batches(data, SCHEMA)


def test_nulls_in_keys_are_not_judged_here():
    (batch,) = to_batches([{"k": None, "s": "a"}], SCHEMA)
    assert batch.column("k").null_count == 1


def test_no_python_per_row():
    def work(rows: int) -> int:
        table = pa.table(
            {
                "k": pa.array(np.arange(rows), pa.int32()),
                "s": pa.array(np.arange(rows) % 7).cast(pa.large_string()).dictionary_encode(),
                "g": pa.array(np.arange(rows), pa.float32()),
            }
        )
        dicts = table.to_pylist()
        return calls.count(lambda: (to_batches(table, SCHEMA), to_batches(dicts, SCHEMA)))

    assert work(100_000) <= 2 * work(1_000)
