"""User data: every accepted form gives the same batches, of the stored types."""

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.common import schema as schemas
from nyala.common.batches import to_batches
from nyala.common.errors import SchemaMismatch
from tests.unit.common.support import calls
from tests.unit.common.support.batch_shapes import (
    DAY,
    KEY,
    NOON,
    ROWS,
    SCHEMA,
    SHAPES,
    TABLE,
    column,
)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_input_shape_gives_stored_types(shape):
    (batch,) = to_batches(SHAPES[shape], SCHEMA)
    assert batch.schema == schemas.arrow_schema([SCHEMA.column(n) for n in ("k", "s", "v")])
    assert batch.to_pylist() == ROWS
    batch.validate(full=True)


def test_empty_input_gives_no_batch_but_checks_columns():
    assert to_batches([], SCHEMA) == []
    assert to_batches(TABLE.slice(0, 0), SCHEMA) == []
    for nothing in (
        pa.table({}), TABLE.to_batches()[0].slice(0, 0).select([]), pd.DataFrame(), pl.DataFrame(),
        pd.DataFrame({"k": [], "s": []}),
    ):  # fmt: skip
        assert to_batches(nothing, SCHEMA, extra=[] if len(nothing.columns) else ["op"]) == []
    for unknown in (
        pd.DataFrame({"k": [], "s": [], "other": []}),
        pl.DataFrame({"k": [], "s": [], "other": []}),
    ):
        with pytest.raises(SchemaMismatch, match="no column 'other'"):
            to_batches(unknown, SCHEMA)
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
    with pytest.raises(SchemaMismatch, match="has no column '_op'"):
        to_batches(TABLE, SCHEMA, extra=["_op"])


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
def test_convertible_values(name, array, expected):
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
def test_encoded_chunked_and_sliced_columns_are_decoded(how):
    name, array = ENCODED[how]
    fill = {"k": np.arange(len(array)), "s": ["a"] * len(array)}
    batches = to_batches(pa.table({**fill, name: array}), SCHEMA)
    assert [v for b in batches for v in b.column(name).to_pylist()] == array.to_pylist()


def test_nan_is_preserved():
    assert np.isnan(column(pa.array([1.5, float("nan")]), "f")[1].as_py())


def test_python_floats_are_rounded_to_nearest_float32():
    (batch,) = to_batches([KEY | {"f": 0.1}, KEY | {"f": float("inf")}, KEY | {"f": None}], SCHEMA)
    assert batch.column("f").to_pylist() == [float(np.float32(0.1)), float("inf"), None]


def test_null_keys_are_not_checked_here():
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
