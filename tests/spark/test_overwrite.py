"""Jobs that replace rows: all of a table, or those of a condition, in one transaction."""

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

import nyala
from nyala.common.errors import TransactionDenied
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.replaced_rows import check_replaced
from nyala.spark.writes.staging import commit_parts

pytestmark = pytest.mark.full
SCHEMA = pa.schema(
    [pa.field("k", pa.int64(), nullable=False), ("day", pa.int64()), ("v", pa.string())]
)
OLD = {k: (k % 3, "old") for k in range(30)}


@pytest.fixture
def table(client, request):
    name = f"o_{request.node.name}"[:60]
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 3)])
    made = client.create_table(name, SCHEMA, ["k"], parts, replicas=1)
    made.upsert([{"k": k, "day": d, "v": v} for k, (d, v) in OLD.items()])
    yield made
    client.drop_table(name)


@pytest.fixture
def replace(cluster, table):
    def write(frame, **options):
        where = {"table": table.name, "masters": cluster.masters}
        frame.write.format("nyala").options(**(where | options)).mode("overwrite").save()

    return write


def rows(table, at=None) -> dict[int, tuple[int, str]]:
    return {r["k"]: (r["day"], r["v"]) for r in table.scan(at=at).to_arrow().to_pylist()}


def days(spark, first, last, day):
    made = spark.range(first, last).select(f.col("id").alias("k"), f.lit(day).alias("day"))
    return made.withColumn("v", f.lit("new")).repartition(2)


def test_overwrite_replaces_all_rows_at_one_time_and_keeps_history(spark, table, replace, client):
    before = client.now()
    replace(days(spark, 20, 40, 7))
    assert rows(table) == {k: (7, "new") for k in range(20, 40)}
    feed = table.changes(before, net=False).to_arrow().to_pylist()
    assert len({r["_timestamp"] for r in feed}) == 1
    found = {r["k"]: r["_op"] for r in feed}
    assert found == {k: "delete" if k < 20 else "update" if k < 30 else "insert" for k in range(40)}
    assert rows(table, feed[0]["_timestamp"] - 1) == OLD
    replace(days(spark, 0, 0, 7))
    assert rows(table) == {}


def test_overwrite_with_a_condition_replaces_its_rows_only(spark, table, replace):
    replace(days(spark, 28, 32, 1), where="day = 1")
    kept = {k: row for k, row in OLD.items() if row[0] != 1}
    assert rows(table) == kept | {k: (1, "new") for k in range(28, 32)}


def test_row_outside_of_the_condition_fails_the_job_and_leaves_the_old_rows(spark, table, replace):
    frame = days(spark, 40, 44, 1).union(days(spark, 44, 45, 2))
    with pytest.raises(Exception, match=r"key \{'k': 44\}, does not satisfy where='day = 1'"):
        replace(frame, where="day = 1")
    assert rows(table) == OLD


def test_failed_job_leaves_the_old_rows(spark, table, replace):
    fails = f.when(f.col("k") == 43, f.raise_error(f.lit("bad row"))).otherwise(f.col("v"))
    with pytest.raises(Exception, match="bad row"):
        replace(days(spark, 40, 44, 1).withColumn("v", fails))
    assert rows(table) == OLD


def test_table_can_be_replaced_by_a_frame_that_reads_it(spark, table, replace, cluster):
    where = {"table": table.name, "masters": cluster.masters}
    frame = spark.read.format("nyala").options(**where).load()
    replace(frame.filter("day = 2").withColumn("v", f.lit("kept")))
    assert rows(table) == {k: (2, "kept") for k, row in OLD.items() if row[0] == 2}


def test_job_with_an_id_replaces_once(spark, table, replace):
    replace(days(spark, 0, 3, 1), job_id=f"replace {table.name}")
    table.upsert([{"k": 100, "day": 1, "v": "later"}])
    replace(days(spark, 0, 9, 1), job_id=f"replace {table.name}")
    assert rows(table) == {0: (1, "new"), 1: (1, "new"), 2: (1, "new"), 100: (1, "later")}


@pytest.fixture
def two_numbers(client):
    """Create a table with two columns whose names can be swapped; return options of a job over it."""
    fields = [("k", pa.int64()), ("a", pa.int64()), ("b", pa.int64())]
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    table = client.create_table("two_numbers", pa.schema(fields), ["k"], parts, replicas=1)
    table.upsert([{"k": 1, "a": 1, "b": 2}, {"k": 2, "a": 2, "b": 1}])
    yield table
    client.drop_table("two_numbers")


def swap(table):
    for old, new in (("a", "c"), ("b", "a"), ("c", "b")):
        table.alter().rename_column(old, new).commit()


@pytest.mark.parametrize("where", ["a = 1", "a = 1 and b = 2"])
def test_condition_whose_columns_are_renamed_while_the_job_runs_replaces_nothing(
    cluster, client, two_numbers, where
):
    frame = two_numbers.definition.arrow
    options = WriteOptions.of(
        "two_numbers", cluster.masters, {"where": where}, frame, overwrite=True
    )
    swap(two_numbers)
    before = client.table("two_numbers").scan(order=True).to_arrow()
    with pytest.raises(TransactionDenied, match="renamed while the job ran"):
        commit_parts(client, options, options.write_id, [])
    with pytest.raises(TransactionDenied, match="renamed while the job ran"):
        check_replaced(options, client.table("two_numbers"))
    assert client.table("two_numbers").scan(order=True).to_arrow() == before
    swap(client.table("two_numbers"))
    again = WriteOptions.of("two_numbers", cluster.masters, {"where": where}, frame, overwrite=True)
    commit_parts(client, again, again.write_id, [])
    left = client.table("two_numbers").scan().to_arrow().to_pylist()
    assert [r["k"] for r in left] == [2]
