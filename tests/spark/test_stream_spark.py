"""A stream in a Spark session: rows, restarts from a checkpoint, and errors as a query shows them."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import nyala
from tests.spark.stream_runs import SLOW_WORKER, TRIES, apply

pytestmark = pytest.mark.full

PAGE = Path(__file__).parents[2] / "docs" / "use" / "spark.md"


@pytest.mark.row("A11")
def test_query_delivers_snapshot_and_changes_once_across_restarts(spark, cluster, client, tmp_path):
    schema = pa.schema([("k", pa.int64()), ("v", pa.int64())])
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
    table = client.create_table("streamed", schema, ["k"], parts, replicas=1)
    table.insert([{"k": k, "v": 0} for k in range(10)]).raise_for_errors()
    batches: dict[int, list[Any]] = {}
    fail: list[str] = []

    def take(frame, number):
        batches.setdefault(number, []).append(frame.toArrow().to_pylist())
        if fail:
            raise RuntimeError(fail.pop())

    def run(name="checkpoint", **more):
        options = {"table": table.name, "masters": cluster.masters, "starting": "snapshot"} | more
        for tries in range(1, TRIES + 1):
            frame = spark.readStream.format("nyala").options(**options).load()
            assert frame.dtypes[-2:] == [("_op", "string"), ("_timestamp", "bigint")]
            writer = frame.writeStream.option("checkpointLocation", str(tmp_path / name))
            query = writer.foreachBatch(take).trigger(availableNow=True).start()
            try:
                query.awaitTermination()
                return ""
            except Exception as err:
                if SLOW_WORKER not in str(err) or tries == TRIES:
                    return str(err)
        raise AssertionError

    assert run(max_rows_per_trigger="4") == ""
    assert [len(b[0]) for _, b in sorted(batches.items()) if b[0]] == [4, 4, 2]
    table.delete([{"k": 1}])
    table.update([{"k": 2, "v": 5}])
    fail.append("after the rows were taken")
    assert "after the rows were taken" in run()
    table.upsert([{"k": 3, "v": 7}])
    assert run() == ""
    [again] = [b for b in batches.values() if len(b) > 1]
    assert again[0] == again[1]
    copy: dict[Any, Any] = {}
    for _, tries in sorted(batches.items()):
        apply(copy, tries[-1])
    assert copy == {r["k"]: r for r in table.scan().to_arrow().to_pylist()}

    with pytest.raises(Exception, match="did you mean 'max_rows_per_trigger'"):
        run("other", max_row_per_trigger="4")
    client.drop_table("streamed")
    client.create_table("streamed", schema, ["k"], parts, replicas=1)
    assert "was dropped and created again" in run()


def test_page_prints_what_it_shows(spark, cluster, client, capsys, tmp_path):
    text = (PAGE.read_text()).partition("## Streams")[2].partition("## Batch writes")[0]
    [(code, shown)] = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", text, re.S)
    schema = pa.schema([("host", pa.string()), ("ts", pa.int64()), ("value", pa.float64())])
    table = client.create_table("metrics", schema, ["host", "ts"], replicas=1)
    table.upsert([{"host": "a", "ts": 1, "value": 0.5}, {"host": "b", "ts": 1, "value": 1.5}])
    code = code.replace("127.0.0.1:7051", cluster.masters)
    code = code.replace("checkpoints/metrics", str(tmp_path / "metrics"))
    script = compile(code, "spark.md", "exec")
    for tries in range(1, TRIES + 1):
        try:
            exec(script, {"spark": spark})
            break
        except Exception as err:
            if SLOW_WORKER not in str(err) or tries == TRIES:
                raise
    assert capsys.readouterr().out == shown
