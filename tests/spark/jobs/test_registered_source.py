"""Sessions of nyala's programs have its data source, also when Spark's search for data sources has failed."""

import os
import subprocess
import sys

import pyarrow as pa
import pytest

from tests.waiting import within

pytestmark = pytest.mark.full
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False)])
PYTHON = """#!/bin/sh
case "$*" in *lookup_data_sources*) exit 1;; esac
exec {} "$@"
"""
"""A Python in which the search for data sources fails, as where a process starts too late."""
PROGRAM = """
import threading
import nyala.spark
from nyala.spark.session import {0}

spark = {0}("a program")

def count(session, read=lambda s: s.read.format("nyala").option("table", "found").load()):
    try:
        print(read(session).count(), flush=True)
    except Exception as err:
        print("DATA_SOURCE_NOT_FOUND" in str(err), flush=True)

for session in (spark, spark.newSession()):
    thread = threading.Thread(target=count, args=(session,))
    thread.start()
    thread.join()
other = spark.newSession()
count(other, lambda s: nyala.spark.read(s, "found"))
count(other)
count(nyala.spark.registered(spark.newSession()))
spark.stop()
"""


def test_registered_sessions_have_the_data_source_where_the_search_for_it_failed(
    cluster, client, tmp_path
):
    table = client.create_table("found", SCHEMA, ["k"], replicas=1)
    table.upsert([{"k": 1}, {"k": 2}])
    python = tmp_path / "python"
    python.write_text(PYTHON.format(sys.executable))
    python.chmod(0o700)
    own = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format("program_session")], cwd=tmp_path, check=False,
        env=os.environ | cluster.environment | own, capture_output=True, text=True, timeout=within(200),
    )  # fmt: skip
    client.drop_table("found")
    found = done.stdout.split()
    assert found == ["2", "True", "2", "2", "2"], done.stderr  # one that Spark made has none
