"""Routing of rows, recognition of foreign rows, pruning: compared with a naive implementation."""

from bisect import bisect_right

import numpy as np
import pyarrow as pa
import pytest

from nyala.common import schema as schemas
from nyala.common.expressions.predicate import Compare, CompareOp, In, all_of, evaluate
from nyala.common.expressions.where import parse
from nyala.common.ids import ColumnId as Id
from nyala.common.partitioning import partition as parts
from nyala.common.partitioning.partition_spec import Hash, Partition, Range, resolve
from tests.unit.common.support import calls, key_reference

SCHEMA = schemas.from_arrow(
    pa.schema([("host", pa.string()), ("n", pa.int16()), ("m", pa.int64()), ("v", pa.int64())]),
    ["host", "n", "m"],
)
SPECS = {
    "hash": Partition(hash=[Hash(["host"], 5)]),
    "two hashes": Partition(hash=[Hash(["n", "host"], 3), Hash(["m"], 4)]),
    "ranges": Partition(range=Range(["n"], [(None, -5), (0, 10), (10, 20), (30, None)])),
    "closed ranges": Partition(
        range=Range(["n", "host"], [((0, "b"), (5, "")), ((5, "a"), (9, "a"))])
    ),
    "all": Partition(
        hash=[Hash(["host"], 2), Hash(["m"], 3)], range=Range(["n"], [(-3, 5), (5, None)])
    ),
}


def batch(rows=500, seed=1):
    rng = np.random.default_rng(seed)
    return pa.record_batch(
        {
            "v": pa.array(rng.integers(0, 9, rows)),
            "m": pa.array(rng.integers(-50, 50, rows)),
            "n": pa.array(rng.integers(-10, 40, rows), pa.int16()),
            "host": pa.array([f"{'abc'[i]}" * (i % 2) for i in rng.integers(0, 3, rows)]),
        }
    )


def linear_search(ps, row):
    """Return the position of a row's partition by a linear search."""
    number = 0
    if ps.range_column_ids:
        columns = [SCHEMA.by_id[i] for i in ps.range_column_ids]
        key = key_reference.encode([row[c.name] for c in columns], [c.type for c in columns])
        number = bisect_right([r.lower or b"" for r in ps.ranges], key) - 1
        if number < 0 or (ps.ranges[number].upper is not None and key >= ps.ranges[number].upper):
            return -1
    for level in ps.hash:
        columns = [SCHEMA.by_id[i] for i in level.column_ids]
        key = key_reference.encode([row[c.name] for c in columns], [c.type for c in columns])
        bucket = key_reference.hash_v1(key, level.seed) * level.buckets >> 64
        number = number * level.buckets + bucket
    return number


@pytest.mark.row("A4")
@pytest.mark.parametrize("name", SPECS)
def test_locate_equals_reference_and_server_partitioning(name):
    ps = resolve(SPECS[name], SCHEMA)
    rows = batch()
    for data in (rows, rows.slice(100, 77), rows.slice(0, 0)):
        found = parts.locate(SCHEMA, ps, data)
        assert found.dtype == np.int32
        assert found.tolist() == [linear_search(ps, row) for row in data.to_pylist()]
        for number, partition in enumerate(parts.partitions(SCHEMA, ps)):
            inside = parts.contains(SCHEMA, ps, partition, data)
            assert inside.tolist() == (found == number).tolist()
    located = parts.locate(SCHEMA, ps, rows)
    assert (located < 0).any() == (name in ("ranges", "closed ranges", "all"))


def test_unpartitioned_table_has_one_tablet():
    ps = resolve(None, SCHEMA)
    assert set(parts.locate(SCHEMA, ps, batch()).tolist()) == {0}
    assert parts.contains(SCHEMA, ps, parts.TabletPartition(), batch()).all()
    assert parts.describe(SCHEMA, ps, parts.TabletPartition()) == "everything"


@pytest.mark.row("A4")
@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    "text",
    [
        "host = 'a'",
        "host in ('a', '')",
        "host = 'a' and n = 3 and m = 4",
        "n >= 5 and n < 30",
        "n between 12 and 31",
        "n = 20",
        "n < -5 or n > 35",
        "n = 5 and host > 'a'",
        "n in (2, 7) and host = 'a' and m in (1, 2, 3)",
        "m = 7",
        "v = 3",
        "n > 3 and n < 3",
        "n <> 3",
        "host like 'b%'",
        "n is null",
        "false",
        "true",
    ],
)
def test_pruning_keeps_every_tablet_that_has_a_matching_row(name, text):
    ps = resolve(SPECS[name], SCHEMA)
    everything = parts.partitions(SCHEMA, ps)
    tree = parse(text, SCHEMA)
    kept = parts.prune(SCHEMA, ps, everything, tree)
    rows = batch(2_000)
    located = parts.locate(SCHEMA, ps, rows)
    matches = evaluate(tree, lambda i: rows.column(SCHEMA.by_id[i].name), len(rows))
    needed = {
        everything[n]
        for n, m in zip(located.tolist(), matches.to_pylist(), strict=True)
        if m and n >= 0
    }
    assert needed <= set(kept)
    assert kept == [p for p in everything if p in set(kept)]


def count(name, text):
    ps = resolve(SPECS[name], SCHEMA)
    return len(parts.prune(SCHEMA, ps, parts.partitions(SCHEMA, ps), parse(text, SCHEMA)))


@pytest.mark.row("A4")
def test_pruning_excludes_tablets_without_matching_rows():
    assert count("hash", "host = 'a'") == 1
    assert count("hash", "host in ('a', 'b', 'c') and host = 'b'") == 1
    assert count("hash", "host > 'a'") == 5
    assert count("two hashes", "m = 3") == 3
    assert count("two hashes", "m = 3 and host = 'x'") == 3
    assert count("two hashes", "m = 3 and host = 'x' and n = 1") == 1
    assert count("ranges", "n >= 10 and n < 20") == 1
    assert count("ranges", "n = 20") == 0
    assert count("ranges", "n < -5") == 1
    assert count("ranges", "n <= 0") == 2
    assert count("closed ranges", "n = 5") == 1
    assert count("closed ranges", "n in (4, 5)") == 2
    assert count("closed ranges", "n = 5 and host = 'a'") == 1
    assert count("all", "false") == 0
    assert count("all", "n is null") == 0
    assert count("all", "host = 'a' and m = 1 and n = 7") == 1


def test_missing_predicate_and_long_lists_prune_nothing():
    ps = resolve(SPECS["hash"], SCHEMA)
    everything = parts.partitions(SCHEMA, ps)
    assert parts.prune(SCHEMA, ps, everything, None) == everything
    two = resolve(Partition(hash=[Hash(["m", "n"], 64)]), SCHEMA)
    tree = all_of(
        [In(Id(2), pa.array(np.arange(200))), In(Id(1), pa.array(np.arange(200), pa.int16()))]
    )
    assert len(parts.prune(SCHEMA, two, parts.partitions(SCHEMA, two), tree)) == 64
    one = all_of(
        [
            In(Id(2), pa.array(np.arange(200))),
            Compare(Id(1), CompareOp.EQ, pa.scalar(1, pa.int16())),
        ]
    )
    assert 32 < len(parts.prune(SCHEMA, two, parts.partitions(SCHEMA, two), one)) <= 64


def test_no_python_per_row():
    ps = resolve(SPECS["all"], SCHEMA)
    partition = parts.partitions(SCHEMA, ps)[2]

    def work(rows: int) -> int:
        data = batch(rows)

        def both() -> None:
            parts.locate(SCHEMA, ps, data)
            parts.contains(SCHEMA, ps, partition, data)

        return calls.count(both)

    assert work(100_000) <= 2 * work(1_000)
