"""Programs that fork after they have connected, and then run Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
PROGRAM = """
import os, sys
import nyala, nyala.spark
from nyala.spark.session import spark_session

client = nyala.connect(os.environ["NYALA_MASTERS"])
table = client.table("forked")
table.upsert([{"k": 1}])
child = os.fork()
if (child == 0) == (sys.argv[1] == "child"):
    spark = spark_session("after a fork")
    frame = spark.range(2, 5).withColumnRenamed("id", "k")
    frame.write.format("nyala").option("table", "forked").mode("append").save()
    print("rows", nyala.spark.read(spark, "forked").count(), flush=True)
    try:
        more = spark.range(4, 7).withColumnRenamed("id", "k")
        print("merged", nyala.spark.merge(more, "forked").inserted, flush=True)
    except nyala.errors.NyalaError as err:
        print("refused", "was forked from one that had a client" in err.message, flush=True)
    spark.stop()
if child:
    os.waitpid(child, 0)
os._exit(0)
"""


@pytest.mark.parametrize(("who", "last"), [("parent", "merged 2"), ("child", "refused True")])
def test_spark_runs_after_a_fork_and_only_the_child_s_own_calls_are_refused(
    cluster, client, tmp_path, who, last
):
    client.create_table("forked", SCHEMA, ["k"], replicas=1)
    log = Path(tmp_path, "log")
    with log.open("w") as errors:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, who], cwd=tmp_path, env=os.environ | cluster.environment,
            stdout=subprocess.PIPE, stderr=errors, text=True, timeout=within(200), check=False,
        )  # fmt: skip
    client.drop_table("forked")
    assert done.stdout.splitlines() == ["rows 4", last], log.read_text()[-4000:]
