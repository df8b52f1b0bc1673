"""A job succeeds, with each row once, when an executor is killed in the middle of it."""

import sys
from contextlib import ExitStack

import pytest

from tests.spark.modes import killed_executor
from tests.spark.modes.conftest import connect_server
from tests.spark.modes.exercise import ROWS

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
EXECUTORS = "local-cluster[2,1,1024]"
PYTHON = [sys.executable, "-m", "tests.spark.modes.killed_executor"]
STARTS = {
    "python": [*PYTHON, EXECUTORS],
    "spark-submit": ["spark-submit", "--master", EXECUTORS, killed_executor.__file__, "-"],
}


@pytest.mark.parametrize("start", STARTS)
def test_executor_killed_in_a_job_loses_and_doubles_nothing(client, tables, run, tmp_path, start):
    began = client.now()
    check(run(*STARTS[start], str(tmp_path / "mark")), tables, began)


def test_executor_of_a_server_of_spark_connect_killed_in_a_job_loses_and_doubles_nothing(
    client, tables, started, run, tmp_path
):
    began = client.now()
    with ExitStack() as stack:
        server, _ = connect_server(stack, started, tmp_path, EXECUTORS)
        check(run(*PYTHON, server, str(tmp_path / "mark")), tables, began)


def check(printed, tables, began):
    """Check that an executor was killed, and that the copy has each row once, written at one time.

    Args:
        printed: by the program.
        tables: source and target.
        began: hybrid time before it.
    """
    source, target = tables
    assert f"killed True sum {sum(range(ROWS))}" in printed
    assert target.scan(order=True).to_arrow() == source.scan(order=True).to_arrow()
    changes = target.changes(began, net=False).to_arrow()
    assert changes["_op"].to_pylist() == ["insert"] * ROWS
    assert len(set(changes["_timestamp"].to_pylist())) == 1
