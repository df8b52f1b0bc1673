"""Jobs whose table is dropped and created again under its name while they run: none mixes the two."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext

from nyala.common.errors import NotFound, NyalaError
from nyala.spark.frames.merge import merge
from nyala.spark.frames.read import read
from nyala.spark.jobs import backups, copy
from nyala.spark.jobs.comparison import read_table
from nyala.spark.writes.atomic import AtomicWriter
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.writer import TableWriter
from tests.spark.stream_runs import SLOW_WORKER, TRIES

pytestmark = pytest.mark.full
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
NAME = "replaced"
GONE = "was dropped or renamed, and another one"


def filled(client):
    made = client.create_table(NAME, SCHEMA, ["k"], replicas=1)
    made.upsert(rows(range(100)))
    return made


def rows(keys):
    return pa.RecordBatch.from_pylist([{"k": k, "v": "x"} for k in keys], SCHEMA)


@pytest.fixture
def swap(client):
    """Drops the table and creates it again, empty."""

    def replace():
        client.drop_table(NAME)
        return client.create_table(NAME, SCHEMA, ["k"], replicas=1)

    filled(client)
    yield replace
    client.drop_table(NAME)


@pytest.fixture
def writer(cluster, swap, monkeypatch):
    """Makes the writer of a job on the table; its tasks run in this process."""
    context = SimpleNamespace(partitionId=lambda: 0, taskAttemptId=lambda: 0)
    monkeypatch.setattr(TaskContext, "get", lambda: context)

    def make(kind: Any, **options: str):
        given = {"table": NAME, "masters": cluster.masters} | options
        return kind(WriteOptions.of(NAME, cluster.masters, given, SCHEMA))

    return make


def test_frame_reads_no_other_table_that_has_got_the_name(spark, cluster, swap):
    frame = spark.read.format("nyala").options(table=NAME, masters=cluster.masters).load()
    swap()
    with pytest.raises(Exception, match=GONE):
        frame.collect()


@pytest.mark.parametrize(
    ("kind", "options"), [(TableWriter, {"atomic": "false"}), (AtomicWriter, {})]
)
def test_task_writes_to_no_other_table_that_has_got_the_name(writer, swap, kind, options):
    job = writer(kind, **options)
    job.write(iter([rows(range(5))]))
    there = swap()
    with pytest.raises(NotFound, match="was dropped"):
        job.write(iter([rows(range(5, 9))]))
    assert there.count() == 0


def test_commit_of_rows_that_are_staged_in_a_dropped_table_is_refused(writer, swap):
    job = writer(AtomicWriter)
    staged = job.write(iter([rows(range(5))]))
    there = swap()
    with pytest.raises(NyalaError):
        job.commit([staged])
    assert there.count() == 0


def test_merge_into_a_table_that_is_replaced_before_it_is_read_is_refused(
    spark, cluster, client, swap, monkeypatch
):
    made = []

    def late(*args, **options):
        made.append(swap())
        return read(*args, **options)

    monkeypatch.setattr("nyala.spark.frames.merge.read", late)
    with pytest.raises(NotFound, match=GONE):
        merge(spark.createDataFrame([(7, "y")], "k long, v string"), NAME, masters=cluster.masters)
    assert made[0].count() == 0


def test_restore_loads_files_into_no_other_table_that_has_got_the_name(cluster, client, swap):
    first = client.table(NAME).id
    there = swap()
    load: Any = SimpleNamespace(path="none.parquet")
    with pytest.raises(NotFound, match=GONE):
        backups.load_in_task(load, cluster.masters, NAME, first)
    assert there.count() == 0


def test_copy_of_a_table_that_is_replaced_before_it_is_read_is_refused(
    spark, cluster, client, swap, monkeypatch
):
    def late(*args):
        swap()
        return read_table(*args)

    monkeypatch.setattr("nyala.spark.jobs.copy_table.read_table", late)
    with pytest.raises(NotFound, match=GONE):
        copy(spark, NAME, "the_copy", masters=cluster.masters)
    client.drop_table("the_copy")


def test_stream_into_a_table_that_is_replaced_between_batches_ends(spark, cluster, swap, tmp_path):
    folder = tmp_path / "rows"
    writing = spark.createDataFrame([(7, "y")], "k long, v string").write.mode("append")

    def run(checkpoint="first", **more):
        for tries in range(1, TRIES + 1):
            frame = spark.readStream.schema("k long, v string").parquet(str(folder))
            writer = frame.writeStream.format("nyala").queryName("rows to a table")
            writer = writer.options(table=NAME, masters=cluster.masters, **more)
            writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
                return ""
            except Exception as err:
                if SLOW_WORKER not in str(err) or tries == TRIES:
                    return str(err)
        raise AssertionError

    writing.parquet(str(folder))
    assert run() == ""
    there = swap()
    writing.parquet(str(folder))
    found = run()
    assert "was dropped and created again" in found
    assert "new_checkpoint=restart" in found
    assert there.count() == 0
    assert run("second", new_checkpoint="restart") == ""
    assert there.count() == 1
