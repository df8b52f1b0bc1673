"""One exercise has the same results in a local session, on executors, under Spark Connect, and submitted."""

import json
import socket
import sys
from pathlib import Path

import pytest

from tests.spark.modes import exercise
from tests.spark.modes.conftest import free_port
from tests.spark.modes.exercise import ROWS
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
PROGRAM = [sys.executable, "-m", "tests.spark.modes.exercise"]
CLASSIC = "pyspark.sql.session"
CONNECT = "pyspark.sql.connect.session"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
EXPECTED = {
    "session": CLASSIC, "rows": ROWS, "counted": ROWS, "some": 4950, "view": "9", "sql": "4950",
    "once": 1000, "failed": True, "after failure": 1000, "merged": [100, 100, 900], "one by one": ROWS,
    "replaced": 10, "streamed": [ROWS, ROWS + 1], "changed": -1, "copied": True, "exported": ROWS + 1,
    "files": True, "same": [True, True], "checksums": 1,
    "own": [["load", "twice"], []], "twice": 100,
}  # fmt: skip


def found(printed: str) -> dict[str, object]:
    return dict(json.loads(printed.splitlines()[-1]))


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_local_session(tables, run, tmp_path):
    assert found(run(*PROGRAM, "local[2]", str(tmp_path))) == EXPECTED


def test_executors_of_their_own(tables, run, tmp_path):
    assert found(run(*PROGRAM, "local-cluster[2,1,1024]", str(tmp_path))) == EXPECTED


def test_spark_submit(tables, run, tmp_path):
    command = ["spark-submit", "--master", "local[2]", exercise.__file__, "-", str(tmp_path)]
    assert found(run(*command)) == EXPECTED


def test_spark_connect(tables, started, run, tmp_path):
    port = free_port()
    settings = {
        **exercise.SETTINGS, "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port), "spark.sql.connect.logTrace": "false",
    }  # fmt: skip
    words = [w for name, value in settings.items() for w in ("--conf", f"{name}={value}")]
    with started("spark-submit", "--master", "local[2]", "--class", SERVER, *words) as server:

        def ready() -> bool:
            assert server.poll() is None, Path(tmp_path / "spark-submit.log").read_text()[-4000:]
            return answers(port)

        wait_until(ready, "the server of Spark Connect answers")
        result = found(run(*PROGRAM, f"sc://127.0.0.1:{port}", str(tmp_path)))
    refusal = str(result.pop("sql"))
    assert "Spark Connect does not give access to" in refusal
    assert "nyala.spark.read(spark, table, columns=[...], where=...)" in refusal
    assert result | {"sql": EXPECTED["sql"]} == EXPECTED | {"session": CONNECT}
