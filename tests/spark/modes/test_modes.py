"""One exercise has the same results in a local session, on executors, under Spark Connect, and submitted."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from nyala.spark import jobs
from tests.spark.modes import exercise
from tests.spark.modes.conftest import connect_server
from tests.spark.modes.exercise import ROWS

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
PROGRAM = [sys.executable, "-m", "tests.spark.modes.exercise"]
CLASSIC = "pyspark.sql.session"
CONNECT = "pyspark.sql.connect.session"
EXPECTED = {
    "session": CLASSIC, "rows": ROWS, "counted": ROWS, "some": 4950, "view": "9", "sql": "4950",
    "once": 1000, "failed": True, "after failure": 1000, "merged": [100, 100, 900], "one by one": ROWS,
    "replaced": 10, "streamed": [ROWS, ROWS + 1], "changed": -1, "copied": True, "exported": ROWS + 1,
    "files": True, "same": [True, True], "checksums": 1,
    "generated": 500, "linked": True, "backups": ["full", "incremental"], "restored": ROWS + 1 + 400,
    "equal": True, "lists": True, "bad": 1,
    "own": [["load", "twice"], []], "twice": 100,
}  # fmt: skip


def found(printed: str) -> dict[str, object]:
    return dict(json.loads(printed.splitlines()[-1]))


def test_local_session(tables, run, tmp_path):
    assert found(run(*PROGRAM, "local[2]", str(tmp_path))) == EXPECTED


def test_executors_of_their_own(tables, run, tmp_path):
    assert found(run(*PROGRAM, "local-cluster[2,1,1024]", str(tmp_path))) == EXPECTED


def test_spark_submit(tables, run, tmp_path):
    command = ["spark-submit", "--master", "local[2]", exercise.__file__, "-", str(tmp_path)]
    assert found(run(*command)) == EXPECTED


def test_program_of_the_jobs_is_submitted(tables, run):
    program = Path(jobs.__path__[0], "__main__.py")
    printed = run("spark-submit", "--master", "local[2]", str(program), "checksum", "from_rows")
    assert json.loads(printed.splitlines()[-1])["rows"] == ROWS


def test_spark_connect(tables, started, run, tmp_path):
    with ExitStack() as stack:
        master, _ = connect_server(stack, started, tmp_path)
        result = found(run(*PROGRAM, master, str(tmp_path)))
    refusal = str(result.pop("sql"))
    assert "Spark Connect does not give access to" in refusal
    assert "nyala.spark.read(spark, table, columns=[...], where=...)" in refusal
    assert result | {"sql": EXPECTED["sql"]} == EXPECTED | {"session": CONNECT}
