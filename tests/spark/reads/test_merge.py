"""`nyala.spark.merge` and `partition_by_tablet`: rows by key into a table, in one transaction."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import nyala
import nyala.spark
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.spark import MergeCounts

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
SCHEMA = pa.schema([
    ("day", pa.string()), ("k", pa.int32()), ("v", pa.int64()), ("w", pa.string()),
])  # fmt: skip
COLUMNS = "day string, k int, v long, w string"


@pytest.fixture
def table(client):
    parts = nyala.Partition(hash=[nyala.Hash(["day", "k"], 4)])
    made = client.create_table("merged", SCHEMA, ["day", "k"], parts, replicas=1)
    made.insert([{"day": "mo", "k": k, "v": k, "w": "t"} for k in range(6)]).raise_for_errors()
    yield made
    client.drop_table("merged")


@pytest.fixture
def merge(cluster):
    return lambda frame, **how: nyala.spark.merge(frame, "merged", masters=cluster.masters, **how)


@pytest.fixture
def source(spark):
    rows = [("mo", 4, 40, "s"), ("mo", 5, 50, None), ("mo", 6, 60, "s"), ("tu", 1, 10, "s")]
    return spark.createDataFrame(rows, COLUMNS)


def rows(table) -> list[tuple[Any, ...]]:
    return [tuple(r.values()) for r in table.scan(order=True).to_arrow().to_pylist()]


OLD = [("mo", k, k, "t") for k in range(6)]
NEW = [("mo", 4, 40, "s"), ("mo", 5, 50, None), ("mo", 6, 60, "s"), ("tu", 1, 10, "s")]


def test_rows_are_updated_and_inserted(table, source, merge):
    assert merge(source) == MergeCounts(updated=2, inserted=2, deleted=0)
    assert rows(table) == [*OLD[:4], *NEW]


def test_rows_that_the_source_lacks_are_deleted_or_set(client, table, source, merge):
    before = client.now()
    kept = merge(source, when_not_matched_by_source={"w": "concat(target.w, target.v)"})
    assert kept == MergeCounts(updated=6, inserted=2, deleted=0)
    assert rows(table) == [*(("mo", k, k, f"t{k}") for k in range(4)), *NEW]
    assert merge(source, when_not_matched_by_source="delete") == MergeCounts(4, 0, 4)
    assert rows(table) == NEW
    every = table.changes(before, net=False).to_arrow().to_pylist()
    times = {c["_timestamp"] for c in every}
    assert len(times) == 2  # the rows of each merge became visible at one time


def test_assignments_see_both_sides_and_leave_other_columns(table, source, merge):
    done = merge(
        source,
        when_matched={"v": "source.v + target.v"},
        when_not_matched={"w": f.upper(f.col("source.w"))},
    )
    assert done == MergeCounts(2, 2, 0)
    new = [("mo", 4, 44, "t"), ("mo", 5, 55, "t"), ("mo", 6, None, "S"), ("tu", 1, None, "S")]
    assert rows(table) == [*OLD[:4], *new]


@pytest.mark.parametrize(("matched", "new", "left"), [
    ("delete", None, OLD[:4]), (None, "insert", [*OLD, *NEW[2:]]), ("update", None, [*OLD[:4], *NEW[:2]]),
])  # fmt: skip
def test_actions_by_themselves(table, source, merge, matched, new, left):
    done = merge(source, when_matched=matched, when_not_matched=new)
    assert rows(table) == left
    assert sum((done.updated, done.inserted, done.deleted)) == 2


def test_repeated_keys_and_null_keys_change_nothing(spark, table, source, merge):
    with pytest.raises(Exception, match=r'several rows with the key \{"day":"mo","k":4\}'):
        merge(source.union(source.where("k = 4")))
    with pytest.raises(Exception, match="null"):
        merge(source.union(spark.createDataFrame([(None, 1, 1, "s")], COLUMNS)))
    assert rows(table) == OLD


def test_wrong_arguments_are_refused_before_a_task_runs(table, source, merge):
    for how, text in (
        ({"when_matched": None, "when_not_matched": None}, "changes nothing"),
        ({"when_matched": "upsert"}, "pass 'update', 'delete'"),
        ({"when_not_matched_by_source": "update"}, "pass 'delete'"),
        ({"when_matched": {"k": "1"}}, "sets the key column 'k'"),
    ):
        with pytest.raises(InvalidArgument, match=text):
            merge(source, **how)
    with pytest.raises(SchemaMismatch, match="sets 'x', which is no column"):
        merge(source.withColumn("x", f.lit(1)))
    with pytest.raises(SchemaMismatch, match="lacks the key column 'day'"):
        merge(source.drop("day"))
    with pytest.raises(SchemaMismatch, match="uses the column name '_change'"):
        merge(source.withColumn("_change", f.lit(1)))


def test_partitions_are_those_of_the_tablets(spark, cluster, client, table):
    frame = spark.range(400).selectExpr("concat('d', id % 9) day", "cast(id as bigint) k", "id v")
    parted = nyala.spark.partition_by_tablet(frame, "merged", masters=cluster.masters)
    assert parted.columns == ["day", "k", "v"]
    parts = parted.rdd.glom().collect()
    assert [len(p) > 0 for p in parts] == [True] * 4
    table.upsert(parted.toArrow()).raise_for_errors()
    stored = [
        {(r["day"], r["k"]) for r in pa.Table.from_batches(t.to_arrow_batches()).to_pylist()}
        for t in table.scan(columns=["day", "k"], where="v >= 0 and w is null").tokens()
    ]
    assert [{(r.day, r.k) for r in part} for part in parts] == stored
    with pytest.raises(SchemaMismatch, match="lacks the key column 'day'"):
        nyala.spark.partition_by_tablet(frame.drop("day"), "merged", masters=cluster.masters)
