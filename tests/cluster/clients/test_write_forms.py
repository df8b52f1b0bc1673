"""Every form of write through the public client: its effect, and its errors of failed rows."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import nyala
from nyala.client.calls.rows import OPS

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), nullable=False),
        ("v", pa.int64()),
        pa.field("must", pa.int64(), nullable=False),
        ("fixed", pa.int64()),
    ]
)


@pytest.fixture(scope="module")
def client(cluster):
    with cluster.connect() as made:
        yield made


def create(client, name):
    return client.create_table(
        name, SCHEMA, ["k"], nyala.Partition(hash=[nyala.Hash(["k"], 3)]), immutable=["fixed"]
    )


def row(k, v=0, must=0, fixed=0):
    return {"k": k, "v": v, "must": must, "fixed": fixed}


def codes(result):
    return [(e["row"], e["code"]) for e in result.errors.to_pylist()]


@pytest.mark.row("A3")
def test_every_write_form_reports_row_errors(client):
    table = create(client, "forms")
    present, absent = row(1, v=5), row(2, v=6)
    # form, rows, rows without an error, errors, expected rows by key
    cases = [
        ("insert", [present], 1, [], {1: 5}),
        ("insert", [row(1, v=9), absent], 1, [(0, "already_present")], {1: 5, 2: 6}),
        ("insert_ignore", [row(1, v=9), row(3, v=7)], 2, [], {1: 5, 2: 6, 3: 7}),
        ("update", [row(1, v=8), row(9)], 1, [(1, "not_found")], {1: 8, 2: 6, 3: 7}),
        ("update_ignore", [row(2, v=8), row(9)], 2, [], {1: 8, 2: 8, 3: 7}),
        ("upsert", [row(3, v=3, fixed=1), row(4, v=4)], 1, [(0, "immutable")],
         {1: 8, 2: 8, 3: 7, 4: 4}),
        ("upsert_ignore", [row(3, v=3, fixed=1), row(5, v=5)], 2, [],
         {1: 8, 2: 8, 3: 7, 4: 4, 5: 5}),
        ("delete", [{"k": 9}, {"k": 1}], 1, [(0, "not_found")], {2: 8, 3: 7, 4: 4, 5: 5}),
        ("delete_ignore", [{"k": 1}, {"k": 2}], 2, [], {3: 7, 4: 4, 5: 5}),
        ("insert", [row(None), {**row(6), "must": None}, row(7, v=7)], 1,
         [(0, "null_key"), (1, "null_value")], {3: 7, 4: 4, 5: 5, 7: 7}),
        ("write", [{**row(7, v=1), "_op": "insert"}, {**row(7, v=2), "_op": "upsert"},
                   {**row(3), "_op": "delete"}, {**row(8), "_op": "update"}], 2,
         [(0, "already_present"), (3, "not_found")], {4: 4, 5: 5, 7: 2}),
    ]  # fmt: skip
    for form, rows, took, errors, after in cases:
        result = getattr(table, form)(rows)
        assert (form, result.rows, codes(result)) == (form, took, errors)
        stored = table.scan(columns=["k", "v"]).to_arrow().to_pydict()
        assert dict(zip(stored["k"], stored["v"], strict=True)) == after, form


NOTHING: dict[str, Any] = {
    "list": [],
    "frame": pd.DataFrame(),
    "frame with columns": pd.DataFrame({"k": [], "v": []}),
    "Arrow table": pa.table({}),
    "Arrow table with columns": SCHEMA.empty_table(),
    "generator": iter([]),
    "iterable of frames": [pd.DataFrame(), pa.table({})],
}


@pytest.mark.parametrize("what", NOTHING)
def test_write_of_no_rows_succeeds_in_every_form(client, what):
    table = client.create_table("nothing", SCHEMA, ["k"], exist_ok=True)
    named = "with columns" in what  # of which none is `_op`
    for form in OPS if named else (*OPS, "write"):
        done = getattr(table, form)(NOTHING[what])
        assert (done.rows, done.errors.num_rows, done.next_row) == (0, 0, 0), form
    if what not in ("generator", "iterable of frames"):  # which are streams
        assert table.upsert_soon(NOTHING[what]).result().rows == 0
    with client.transaction() as txn:
        assert table.upsert(NOTHING[what], txn=txn).rows == 0
    assert table.count() == 0


@pytest.mark.row("A3")
def test_errors_among_many_rows_name_their_positions_in_the_data_given(client):
    """Rows are split into windows, tablets and batches, without effect on positions of errors."""
    table = create(client, "many")
    count = 120_000
    taken = np.random.default_rng(2).choice(count, 500, replace=False)
    zeros = pa.array(np.zeros(500, np.int64))
    table.insert(pa.table([pa.array(taken), zeros, zeros, zeros], schema=SCHEMA)).raise_for_errors()
    keys = np.random.default_rng(3).permutation(count)
    ones = pa.array(np.ones(count, np.int64))
    result = table.insert(pa.table([pa.array(keys), ones, ones, ones], schema=SCHEMA))
    assert result.rows == count - 500
    assert set(result.errors["code"].to_pylist()) == {"already_present"}
    assert result.errors["row"].to_pylist() == np.flatnonzero(np.isin(keys, taken)).tolist()
    assert table.count() == count
    assert table.scan(where="v = 0").count() == 500


@pytest.mark.row("A3")
def test_rows_of_one_key_take_effect_in_the_order_given_across_all_batches(client):
    table = create(client, "order")
    count = 100_000
    keys, versions = np.arange(count) % 1_000, np.arange(count)
    ones = pa.array(np.ones(count, np.int64))
    given = pa.table([pa.array(keys), pa.array(versions), ones, ones], schema=SCHEMA)
    table.upsert(given).raise_for_errors()
    found = table.scan(columns=["k", "v"]).to_arrow().sort_by("k")
    assert found["v"].to_pylist() == list(range(count - 1_000, count))
