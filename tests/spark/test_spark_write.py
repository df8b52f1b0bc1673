"""Batch writes through Spark: ops, kinds, types, exactly once per task, errors."""

import sys
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import functions as f
from pyspark.sql.pandas.types import to_arrow_schema

import nyala
from nyala.spark.source import NyalaSource
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.writer import TableWriter

SCHEMA = pa.schema(
    [("k", pa.int64()), ("text", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int16())]
)
ROWS = {"atomic": "false"}
"""Option with which each row takes effect by itself."""


@pytest.fixture
def table(client, request):
    name = f"w_{request.node.name}"[:60]
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    yield client.create_table(name, SCHEMA, ["k"], parts, replicas=1)
    client.drop_table(name)


@pytest.fixture
def save(cluster, table):
    def write(frame, mode="append", source="nyala", **options):
        where = {"table": table.name, "masters": cluster.masters}
        frame.write.format(source).options(**{**where, **options}).mode(mode).save()

    return write


def rows(table) -> dict[int, tuple[Any, ...]]:
    return {r.pop("k"): tuple(r.values()) for r in table.scan().to_arrow().to_pylist()}


def test_types_time_zones_and_omitted_columns(spark, table, save, cluster):
    moment = datetime(2013, 3, 10, 7, 30, 0, 1, UTC)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")  # Arrow batches then carry it
    try:
        full = spark.createDataFrame(
            [(1, "a'%_", moment, 7), (2, None, None, None)],
            "k long, text string, at timestamp, n int",
        )
        save(full)
        save(spark.createDataFrame([(1, 8)], "k int, n long"))  # upsert of two columns
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert rows(table) == {1: ("a'%_", moment, 8), 2: (None, None, None)}
    back = spark.read.format("nyala").options(table=table.name, masters=cluster.masters).load()
    assert back.where("k = 1").collect()[0].at.astimezone(UTC) == moment


def test_op_for_all_rows_or_per_row(spark, table, save):
    save(
        spark.createDataFrame([(k, "new") for k in range(6)], "k long, text string"),
        **ROWS,
        op="insert",
    )
    save(
        spark.createDataFrame([(0, "kept"), (9, "new")], "k long, text string"), op="insert_ignore"
    )
    save(spark.createDataFrame([(1,), (77,)], "k long"), op="delete_ignore")
    ops = [
        (2, "changed", "update"),
        (3, None, "delete"),
        (8, "more", "upsert"),
        (3, "again", "insert"),
    ]
    mixed = spark.createDataFrame(ops, "k long, text string, what string").coalesce(1)
    save(mixed, op_column="what", **ROWS)
    texts = {k: v[0] for k, v in rows(table).items()}
    expected = {0: "new", 2: "changed", 3: "again", 4: "new", 5: "new", 8: "more", 9: "new"}
    assert texts == expected


@pytest.mark.full
def test_op_kind_accepts_only_its_options_and_columns(spark, table, save):
    kinds = ROWS | {
        "kind.Born": "insert: text",
        "kind.counted": "update: n",
        "kind.gone": "delete:",
    }
    stream = [
        (1, "one", None, "Born"), (2, "two", None, "Born"), (1, None, 5, "counted"),
        (3, "three", None, "Born"), (2, None, None, "gone"),
    ]  # fmt: skip
    frame = spark.createDataFrame(stream, "k long, text string, n int, kind string").coalesce(1)
    save(frame, kind_column="kind", **kinds)
    assert rows(table) == {1: ("one", None, 5), 3: ("three", None, None)}
    with pytest.raises(Exception, match="kind 'odd'"):
        save(frame.withColumn("kind", f.lit("odd")), kind_column="kind", **kinds)
    with pytest.raises(Exception, match="'Born' and 'born'"):
        save(
            frame.union(frame.withColumn("kind", f.lower("kind"))).coalesce(1),
            kind_column="kind",
            **kinds,
        )
    assert rows(table) == {1: ("one", None, 5), 3: ("three", None, None)}


class FailsInTheMiddle(TableWriter):
    """The first attempt of every task fails once half of its batches are acknowledged."""

    def write(self, iterator):
        def broken():
            for number, batch in enumerate(iterator):
                if number == 5 and TaskContext.get().attemptNumber() == 0:
                    raise OSError("the first attempt fails here")
                yield batch

        def backwards():
            yield from reversed(list(iterator))

        again = self._options.op == "upsert" and TaskContext.get().attemptNumber() > 0
        return super().write(backwards() if again else broken())


class FailingSource(NyalaSource):
    @classmethod
    def name(cls):
        return "nyala_fails_once"

    def writer(self, schema, overwrite):
        where = (self.options["table"], self.options["masters"])
        frame = to_arrow_schema(schema, timezone="UTC")
        return FailsInTheMiddle(WriteOptions.of(*where, self.options, frame))


@pytest.mark.full
def test_repeated_spark_task_takes_effect_once(spark, table, save, client):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FailingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    before = client.now()
    try:
        frame = (
            spark.range(2000)
            .selectExpr("id as k", "concat('row ', id) as text")
            .repartition(2, "k")
        )
        # A second insert of the same key would be a row error, and a row error fails the job.
        save(frame.sortWithinPartitions("k"), source="nyala_fails_once", op="insert", **ROWS)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert {k: v[0] for k, v in rows(table).items()} == {k: f"row {k}" for k in range(2000)}
    versions = table.changes(before, net=False).to_arrow()
    assert versions.num_rows == 2000, "a row was written twice"


@pytest.mark.full
def test_repeated_spark_task_with_reordered_rows_succeeds(spark, table, save):
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    spark.dataSource.register(FailingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        frame = spark.range(2000).selectExpr("id as k", "concat('row ', id) as text")
        save(frame.coalesce(1), source="nyala_fails_once", op="upsert", **ROWS)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert {k: v[0] for k, v in rows(table).items()} == {k: f"row {k}" for k in range(2000)}


@pytest.mark.full
def test_invalid_write_fails_job_with_reason(spark, table, save):
    table.insert([{"k": 1, "text": "there"}]).raise_for_errors()
    one = spark.createDataFrame([(1, "x")], "k long, text string")

    def message(frame, mode="append", **options):
        with pytest.raises(Exception) as raised:
            save(frame, mode, **options)
        return str(raised.value)

    assert "already_present" in message(one, op="insert", **ROWS)
    assert "overwrite" in message(one, mode="overwrite", **ROWS)
    assert 'name the table: .option("table"' in message(one, table="")
    assert "no table 'nowhere'" in message(one, table="nowhere")
    assert "no column 'txt'" in message(one.withColumnRenamed("text", "txt"))
    assert "ops are" in message(one, op="replace")
    assert "no column 'what'" in message(one, op_column="what")
    assert "lacks the key column 'k'" in message(one.select("text"))
    assert "column 'k' has type string" in message(one.withColumn("k", f.col("k").cast("string")))
    assert "null_key" in message(spark.createDataFrame([(None, "x")], "k long, text string"))
    assert "column 'n'" in message(spark.createDataFrame([(5, 70_000)], "k long, n int"))
    assert rows(table) == {1: ("there", None, None)}
