"""The error of a stream whose user has lost a grant, without Spark."""

import pickle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from nyala.client.write.staging import StagedPart
from nyala.common.errors import Forbidden, Unavailable
from nyala.spark import source
from nyala.spark.clients import PlannedTable
from nyala.spark.stream_errors import naming_table
from nyala.spark.stream_offset import StreamOffset
from nyala.spark.stream_options import StreamOptions
from nyala.spark.stream_reader import TableStreamReader
from nyala.spark.writes import stream
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.staging import TaskStaged

WHY = "ann needs a grant of the role writer on this table, if there is one"
NAMED = f"table 'sales': {WHY}.*start it again with the same checkpointLocation"
WRITE = WriteOptions(
    "sales", "127.0.0.1:1", "upsert", "", "", {}, "0" * 32, 0, planned=PlannedTable("A", 0, 0)
)
READ = {"table": "sales", "masters": "127.0.0.1:1", "starting": "now"}


def denied(*_: Any, **__: Any) -> Any:
    raise Forbidden(WHY, {"a": "b"})


def test_missing_grant_names_the_table_and_other_errors_stay():
    with pytest.raises(Forbidden, match=NAMED) as found, naming_table("sales"):
        denied()
    assert found.value.details == {"a": "b"}
    with pytest.raises(Unavailable, match="silent"), naming_table("sales"):
        raise Unavailable("silent")


def test_tasks_and_commits_of_a_stream_name_the_table(monkeypatch):
    made = stream.StreamTableWriter(WRITE, "n", False)
    context = SimpleNamespace(getLocalProperty=lambda _: "1")
    monkeypatch.setattr(stream, "TaskContext", SimpleNamespace(get=lambda: context))
    monkeypatch.setattr(stream, "stage_rows", denied)
    with pytest.raises(Forbidden, match=NAMED):
        made.write(iter(()))
    monkeypatch.setattr(stream, "writing_client", lambda _: SimpleNamespace(find_key=denied))
    with pytest.raises(Forbidden, match=NAMED):
        made.commit([TaskStaged(0, "0" * 32, StagedPart("-"), "q")], 0)


def test_planning_of_a_stream_s_batch_names_the_table(monkeypatch):
    made = TableStreamReader(StreamOptions.of(READ), pa.schema([]))
    plan = SimpleNamespace(next_offset=denied, tokens=denied)
    monkeypatch.setattr(made, "_opened", plan)
    offset = StreamOffset(cluster="c", table="t").as_dict()
    for call in (
        lambda: made.latestOffset(offset, made.getDefaultReadLimit()),
        lambda: made.partitions(offset, offset),
    ):
        with pytest.raises(Forbidden, match=NAMED):
            call()


def test_source_names_the_table_when_spark_opens_it(monkeypatch):
    """Spark makes the writer of a stream again for each commit: its grant may have gone since the start."""
    monkeypatch.setattr(source, "process_client", lambda _: SimpleNamespace(table=denied))
    monkeypatch.setattr(WriteOptions, "of", denied)
    made = source.NyalaSource({"table": "sales", "masters": "127.0.0.1:1"})
    stream = source.NyalaSource(READ)
    for call in (
        lambda: made.schema(),
        lambda: stream.schema(),
        lambda: made.writer(StructType([]), False),
    ):
        with pytest.raises(Forbidden, match=f"table 'sales': {WHY}. Run this again when"):
            call()
    refused = pickle.loads(pickle.dumps(made.streamWriter(StructType([]), False)))
    for call in (lambda: refused.write(iter(())), lambda: refused.commit([], 1)):
        with pytest.raises(Forbidden, match=NAMED):
            call()
    refused.abort([], 1)
