"""Batch jobs that take effect as a whole: failed jobs, repeated tasks, repeated jobs, errors."""

import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

import nyala
from nyala.spark.source import NyalaSource
from nyala.spark.writes.atomic import AtomicWriter
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.staging import TaskStaged
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def table(client, request):
    name = f"a_{request.node.name}"[:60]
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 3)])
    yield client.create_table(name, SCHEMA, ["k"], parts, replicas=1)
    client.drop_table(name)


@pytest.fixture
def save(cluster, table):
    def write(frame, source="nyala", **options):
        where = {"table": table.name, "masters": cluster.masters}
        frame.write.format(source).options(**(where | options)).mode("append").save()

    return write


def rows(table) -> dict[int, str]:
    return {r["k"]: r["v"] for r in table.scan().to_arrow().to_pylist()}


def numbered(spark, count, text):
    return spark.range(count).select(f.col("id").alias("k"), f.lit(text).alias("v")).repartition(3)


def test_job_is_visible_at_one_time_and_not_before(spark, table, save, client):
    before = client.now()
    save(numbered(spark, 3_000, "one"))
    assert rows(table) == dict.fromkeys(range(3_000), "one")
    times = set(table.changes(before, net=False).to_arrow()["_timestamp"].to_pylist())
    assert len(times) == 1, "rows have several commit times"
    [at] = times
    assert table.scan(at=at - 1).to_arrow().num_rows == 0
    assert table.scan(at=at).to_arrow().num_rows == 3_000


@pytest.mark.full
def test_failed_job_leaves_nothing(spark, table, save, client):
    table.upsert([{"k": 1, "v": "old"}])
    fails = f.when(f.col("k") == 2_999, f.raise_error(f.lit("bad row"))).otherwise(f.col("v"))
    with pytest.raises(Exception, match="bad row"):
        save(numbered(spark, 3_000, "new").withColumn("v", fails))
    assert rows(table) == {1: "old"}


@pytest.mark.full
def test_row_that_the_table_refuses_fails_the_job_and_leaves_nothing(spark, table, save):
    bad = spark.createDataFrame([(1, "x"), (None, "y")], "k long, v string").coalesce(1)
    with pytest.raises(Exception, match="null_key"):
        save(bad)
    assert rows(table) == {}


class RepeatsTasks(AtomicWriter):
    """The first attempt of every task fails when it has staged all; rows come in another order."""

    def write(self, iterator):
        done = super().write(reversed(list(iterator)))
        if TaskContext.get().attemptNumber() == 0:
            raise OSError("the first attempt fails after its last row")
        return done


class RepeatingSource(NyalaSource):
    @classmethod
    def name(cls):
        return "nyala_repeats"

    def writer(self, schema, overwrite):
        where = (self.options["table"], self.options["masters"])
        frame = to_arrow_schema(schema, timezone="UTC")
        return RepeatsTasks(WriteOptions.of(*where, self.options, frame))


def test_repeated_tasks_take_effect_once_whatever_their_order(spark, table, save, client):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(RepeatingSource)
    before = client.now()
    save(numbered(spark, 2_000, "once"), source="nyala_repeats")
    assert rows(table) == dict.fromkeys(range(2_000), "once")
    assert table.changes(before, net=False).to_arrow().num_rows == 2_000


@pytest.mark.row("W2")
@pytest.mark.full
def test_job_with_an_id_takes_effect_once(spark, table, save, client):
    save(numbered(spark, 10, "first"), job_id=f"job of {table.name}")
    save(numbered(spark, 20, "second"), job_id=f"job of {table.name}")
    assert rows(table) == dict.fromkeys(range(10), "first")
    found = client.find_key(f"job of {table.name}")
    assert found is not None
    assert table.scan(at=found.at).to_arrow().num_rows == 10
    assert client.find_key("no such job") is None


@pytest.mark.full
def test_deletes_and_upserts_of_one_job_take_effect_together(spark, table, save):
    table.upsert([{"k": k, "v": "old"} for k in range(6)])
    ops = [
        (0, "new", "upsert"),
        (1, None, "delete"),
        (77, None, "delete"),
        (2, "no", "insert_ignore"),
    ]
    frame = spark.createDataFrame(ops, "k long, v string, what string").coalesce(1)
    save(frame, op_column="what")
    assert rows(table) == {0: "new", 2: "old", 3: "old", 4: "old", 5: "old"}


def options(cluster, table, **more: Any):
    given = {"table": table.name, "masters": cluster.masters} | more
    return WriteOptions.of(table.name, cluster.masters, given, SCHEMA)


def test_abort_after_a_commit_undoes_nothing_and_without_one_frees_the_stages(
    cluster, client, table
):
    def job(text):
        chosen = options(cluster, table)
        writer = AtomicWriter(chosen)
        token = nyala.TransactionToken(chosen.write_id, cluster.masters)
        part = client.transaction_part(token, "0-0")
        table.upsert([{"k": 1, "v": text}], txn=part)
        return writer, [TaskStaged(0, token.id, part.staged())]

    writer, messages = job("kept")
    writer.commit(messages)
    writer.abort(messages)
    assert rows(table) == {1: "kept"}
    writer, messages = job("dropped")
    writer.abort([*messages, None])
    with pytest.raises(Exception, match="not committed"):
        writer.commit(messages)
    assert rows(table) == {1: "kept"}
    table.upsert([{"k": 1, "v": "free"}])  # nothing is prepared
    wait_until(lambda: rows(table) == {1: "free"}, "writes go on", 60)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"op": "insert"}, "op insert: whether a row fails depends on the table"),
        ({"kind_column": "v", "kind.a": "update: v"}, "op update: .* or option atomic=false"),
        ({"job_di": "x"}, "did you mean 'job_id'"),
        ({"atomic": "maybe"}, "write true or false"),
        ({"atomic": "false", "job_id": "x"}, "job_id is of atomic jobs"),
    ],
    ids=str,
)
def test_wrong_option_is_refused_in_the_driver(cluster, table, given, words):
    with pytest.raises(nyala.errors.InvalidArgument, match=words):
        options(cluster, table, **given)
