"""Reads and writes with executors that are killed, under Spark Connect, by spark-submit and in pipelines."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import nyala

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
ROOT = Path(__file__).parents[3]
LIMIT_S = 900
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
ROWS = 4_000
SETTINGS = """
import os, sys, nyala, nyala.spark
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
builder = (SparkSession.builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
           .config("spark.driver.bindAddress", "127.0.0.1").config("spark.log.level", "ERROR")
           .config("spark.sql.shuffle.partitions", "2"))
"""
KILLED = """
spark = (builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "1g")
         .config("spark.python.daemon.module", "nyala.spark.daemon").getOrCreate())

def kill_own_executor_once(batches):
    import signal
    executor = int(open(f"/proc/{os.getppid()}/stat").read().rsplit(")", 1)[1].split()[1])
    try:
        os.close(os.open(MARK, os.O_CREAT | os.O_EXCL))
        os.kill(executor, signal.SIGKILL)
    except FileExistsError:
        pass
    yield from batches

MARK = sys.argv[1]
frame = nyala.spark.read(spark, "from_rows")
moved = frame.mapInArrow(kill_own_executor_once, frame.schema)
moved.write.format("nyala").option("table", "to_rows").mode("append").save()
total = nyala.spark.sql(spark, "select sum(v) x from to_rows").first().x
print("killed", os.path.exists(MARK), "sum", total)
"""
CONNECTED = """
spark = builder.remote("local[2]").getOrCreate()
assert "connect" in type(spark).__module__
frame = nyala.spark.read(spark, "from_rows", columns=["k", "v"], where="k < 1000")
parted = nyala.spark.partition_by_tablet(frame, "to_rows")
parted.write.format("nyala").option("table", "to_rows").mode("append").save()
done = nyala.spark.merge(frame.where("k < 2000").withColumn("v", f.col("v") + 1), "to_rows",
                         when_matched={"v": "source.v"}, when_not_matched_by_source="delete")
nyala.spark.register_views(spark, ["to_rows"])
print("merged", done.updated, done.inserted, "sum", spark.sql("select sum(v) x from to_rows").first().x)
try:
    nyala.spark.sql(spark, "select 1")
except nyala.InvalidArgument as error:
    print("refused", "Spark Connect does not" in error.message)
"""
SUBMITTED = """
spark = builder.getOrCreate()
frame = nyala.spark.sql(spark, "select k, v, s from from_rows where k < 10")
frame.write.format("nyala").option("table", "to_rows").mode("append").save()
print("master", spark.sparkContext.master, "rows", nyala.spark.read(spark, "to_rows", columns=[]).count())
"""


@pytest.fixture
def tables(client):
    parts = nyala.Partition(hash=[nyala.Hash(["k"], 4)])
    source = client.create_table("from_rows", SCHEMA, ["k"], parts, replicas=1)
    source.insert([{"k": k, "v": k, "s": f"{k}"} for k in range(ROWS)]).raise_for_errors()
    yield source, client.create_table("to_rows", SCHEMA, ["k"], parts, replicas=1)
    client.drop_table("from_rows")
    client.drop_table("to_rows")


@pytest.fixture
def run(cluster, tmp_path):
    """Run a command in an empty folder; return what it prints."""

    def started(*command: str) -> str:
        bin_folder = str(Path(sys.executable).parent)
        environment = os.environ | {
            "NYALA_MASTERS": cluster.masters, "PYTHONPATH": str(ROOT / "src"),
            "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return done.stdout

    return started


@pytest.fixture
def script(tmp_path):
    def written(text: str) -> str:
        path = tmp_path / "job.py"
        path.write_text(SETTINGS + text)
        return str(path)

    return written


def test_executor_killed_in_a_job_loses_and_doubles_nothing(tables, run, script, tmp_path):
    printed = run(sys.executable, script(KILLED), str(tmp_path / "mark"))
    assert f"killed True sum {sum(range(ROWS))}" in printed
    source, target = tables
    assert target.scan(order=True).to_arrow() == source.scan(order=True).to_arrow()


def test_spark_connect_reads_writes_and_merges(tables, run, script):
    printed = run(sys.executable, script(CONNECTED))
    assert f"merged 1000 0 sum {sum(range(1, 1001))}" in printed
    assert "refused True" in printed


def test_spark_submit_runs_a_job(tables, run, script):
    printed = run("spark-submit", "--master", "local[2]", script(SUBMITTED))
    assert "master local[2] rows 10" in printed


def test_declarative_pipeline_has_source_and_sink(client, run, tmp_path):
    schema = pa.schema([("sensor", pa.string()), ("at", pa.int64()), ("value", pa.float64())])
    source = client.create_table("readings", schema, ["sensor", "at"], replicas=1)
    alarms = client.create_table("alarms", schema, ["sensor", "at"], replicas=1)
    source.insert([{"sensor": f"s{n % 3}", "at": n, "value": n * 2.0} for n in range(90)])
    folder = tmp_path / "pipeline"
    shutil.copytree(ROOT / "examples" / "spark_pipeline", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("/tmp/nyala-readings-pipeline", f"{tmp_path}/storage"))
    run("spark-pipelines", "run", "--spec", str(spec))
    assert sorted(r["at"] for r in alarms.scan().to_arrow().to_pylist()) == list(range(51, 90))
    source.upsert([{"sensor": "s0", "at": 0, "value": 101.0}])
    run("spark-pipelines", "run", "--spec", str(spec))
    assert alarms.count() == 40
    client.drop_table("readings")
    client.drop_table("alarms")
