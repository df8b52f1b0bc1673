"""The stream source against the table itself: the reader alone, called as Spark calls it."""

import itertools
import json
import random
from typing import Any

import pyarrow as pa
import pytest

import nyala
from tests.spark.stream_runs import Checkpoint, StreamRun, apply, open_reader

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
HASH = nyala.Partition(hash=[nyala.Hash(["k"], 2)])


@pytest.fixture
def make(client, request):
    names = itertools.count()

    def create(parts=HASH):
        name = f"{request.node.name} {next(names)}"
        return client.create_table(name, SCHEMA, ["k"], parts, replicas=1)

    return create


@pytest.fixture
def start(cluster):
    def run(table, checkpoint=None, **options):
        return StreamRun(open_reader(cluster.masters, table.name, **options), checkpoint)

    return run


def rows_at(table, at):
    return {r["k"]: r for r in table.scan(at=at).to_arrow().to_pylist()}


def write_some(table, rng):
    """Write by random ops, keys repeated, columns left out."""
    for _ in range(rng.randrange(1, 4)):
        keys = [rng.randrange(60) for _ in range(rng.randrange(1, 20))]
        rows = [{"k": k, "v": rng.randrange(99), "s": str(k)} for k in keys]
        op = rng.choice(["upsert", "upsert", "update_ignore", "delete_ignore", "insert_ignore"])
        part = rng.choice([["k", "v", "s"], ["k", "v"], ["k", "s"]])
        getattr(table, op)([{n: r[n] for n in part} for r in rows])


@pytest.mark.row("W7")
@pytest.mark.parametrize("net", ["true", "false"])
@pytest.mark.parametrize("limit", ["", "7"])
def test_copy_equals_table_at_each_offset_across_restarts(make, start, net, limit):
    rng = random.Random(f"{net} {limit}")
    table, checkpoint = make(), Checkpoint()
    copy: dict[Any, Any] = {}
    write_some(table, rng)
    options = {"net": net} | ({"max_rows_per_trigger": limit} if limit else {})
    whole = 0
    for turn in range(6):
        with start(table, checkpoint, **options) as run:
            if turn % 2:  # ended between planning and commit: the batch is run again
                run.plan()
                before = run.rows(len(checkpoint.planned) - 1)
                write_some(table, rng)
        with start(table, checkpoint, **options) as run:
            if turn % 2:
                assert run.rows(len(checkpoint.planned) - 1) == before
            while (rows := run.next()) is not None:
                apply(copy, rows)
                at = json.loads(checkpoint.planned[-1])
                if not at["tablet"]:
                    assert copy == rows_at(table, at["through"])
                    whole += 1
        write_some(table, rng)
    assert whole > 6
    assert copy != {}


def test_snapshot_is_read_in_parts_of_the_limit_and_of_bytes(make, start):
    table = make()
    table.insert([{"k": k, "v": k, "s": "x"} for k in range(50)]).raise_for_errors()
    with start(table, max_rows_per_trigger="7") as run:
        sizes = []
        while (rows := run.next()) is not None:
            sizes.append(len(rows))
            table.upsert([{"k": 100, "v": len(sizes), "s": ""}])  # after the snapshot
            if sum(sizes) == 50:
                break
    assert sizes == [7] * 7 + [1]
    with start(table, split_bytes="100") as run:
        assert run.plan()
        parts = run.rows(0)
    assert len(parts) > 4
    assert sorted(r["k"] for p in parts for r in p) == [*range(50), 100]
    assert {r["_op"] for p in parts for r in p} == {"insert"}
    assert {r["_timestamp"] for p in parts for r in p} == {run.through()}


def test_limit_is_exact_but_for_changes_of_one_time(make, start):
    table = make()
    with start(table, max_rows_per_trigger="5", net="false", starting="now") as run:
        assert run.next() == []
        for k in range(12):
            table.upsert([{"k": k, "v": 0, "s": ""}])
        table.upsert([{"k": k, "v": 1, "s": ""} for k in range(40)])
        sizes = []
        while (rows := run.next()) is not None:
            sizes.append(len(rows))
            times = [r["_timestamp"] for r in rows]
            assert len(rows) <= 5 or len(set(times)) == 1
    assert sizes[:2] == [5, 5]
    assert sum(sizes) == 52


def test_limited_snapshot_has_each_row_once(make, start):
    table = make()
    table.upsert([{"k": k, "v": 0, "s": ""} for k in range(40)])
    keys = []
    with start(table, max_rows_per_trigger="7", starting="snapshot") as run:
        while (rows := run.next()) is not None:
            assert len(rows) <= 7
            keys += [row["k"] for row in rows]
    assert sorted(keys) == list(range(40))


def test_changes_of_one_key_are_in_order_with_and_without_limit(make, start):
    """Also across the drop of its range and a new range with the same keys."""
    for limit in ({}, {"max_rows_per_trigger": "1"}):
        ranges = nyala.Partition(range=nyala.Range(["k"], [(0, 10), (10, 20)]))
        table = make(ranges)
        run = start(table, starting="now", net="false", **limit)
        with run:
            assert run.next() == []
            table.upsert([{"k": k, "v": 0, "s": "a"} for k in (5, 15)])
            table.alter().drop_range(0, 10).commit()
            table.alter().add_range(0, 10).commit()
            table.upsert([{"k": 5, "v": 1, "s": "b"}])
            table.delete([{"k": 5}])
            table.upsert([{"k": 5, "v": 2, "s": "c"}])
            batches = []
            while (rows := run.next()) is not None:
                batches.append(rows)
        found = [(r["_op"], r["v"], r["k"]) for rows in batches for r in rows]
        assert [f for f in found if f[2] == 5] == [
            ("insert", 0, 5), ("delete", None, 5), ("insert", 1, 5), ("delete", None, 5), ("insert", 2, 5)
        ]  # fmt: skip


def test_drop_of_a_range_ends_a_batch(make, start):
    """Rows of a new range of the same keys come in a later batch, so that no partition overtakes another."""
    table = make(nyala.Partition(range=nyala.Range(["k"], [(0, 10), (10, 20)])))
    table.upsert([{"k": k, "v": 0, "s": "a"} for k in (5, 6, 15)])
    with start(table) as run:
        copy: dict[Any, Any] = {}
        apply(copy, run.next())
        table.alter().drop_range(0, 10).commit()
        table.alter().add_range(0, 10).commit()
        table.upsert([{"k": 5, "v": 1, "s": "b"}])
        first, second = run.next(), run.next()
        assert sorted((r["k"], r["_op"]) for r in first) == [(5, "delete"), (6, "delete")]
        assert [(r["k"], r["v"], r["_op"]) for r in second] == [(5, 1, "insert")]
        apply(copy, [*first, *second])
        assert copy == rows_at(table, run.through())
        assert run.next() is None


def test_run_until_present_ends_at_its_beginning(make, start):
    table, checkpoint = make(), Checkpoint()
    table.upsert([{"k": k, "v": 0, "s": ""} for k in range(9)])
    with start(table, checkpoint, max_rows_per_trigger="4") as run:
        run.reader.prepareForTriggerAvailableNow()
        found = []
        while (rows := run.next()) is not None:
            found += rows
            table.upsert([{"k": 100 + len(found), "v": 1, "s": ""}])
        assert len(found) == 9
    with start(table, checkpoint) as run:
        run.reader.prepareForTriggerAvailableNow()
        assert len(run.next()) == 3
        assert run.next() is None


def test_columns_and_condition_apply_to_snapshot_and_changes(make, start):
    table = make()
    table.upsert([{"k": k, "v": k, "s": "a"} for k in range(6)])
    options = {"columns": "s, k", "where": "v >= 3", "max_rows_per_trigger": "2"}
    with start(table, **options) as run:
        copy: dict[Any, Any] = {}
        while len(copy) < 3:
            apply(copy, run.next())
        table.update([{"k": 0, "v": 9}, {"k": 5, "v": 0}])
        while (rows := run.next()) is not None:
            apply(copy, rows)
    assert copy == {k: {"k": k, "s": "a"} for k in (0, 3, 4)}


def test_idle_stream_plans_nothing(make, start):
    table = make()
    table.upsert([{"k": 1, "v": 1, "s": ""}])
    with start(table) as run:
        assert len(run.next()) == 1
        assert run.next() is None
        assert run.next() is None
        assert len(run.checkpoint.planned) == 1
