"""A job succeeds, with each row once, when an executor is killed in the middle of it."""

import sys

import pytest

from tests.spark.modes import killed_executor
from tests.spark.modes.exercise import ROWS

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
EXECUTORS = "local-cluster[2,1,1024]"
STARTS = {
    "python": [sys.executable, "-m", "tests.spark.modes.killed_executor", EXECUTORS],
    "spark-submit": ["spark-submit", "--master", EXECUTORS, killed_executor.__file__, "-"],
}


@pytest.mark.parametrize("start", STARTS)
def test_executor_killed_in_a_job_loses_and_doubles_nothing(client, tables, run, tmp_path, start):
    source, target = tables
    began = client.now()
    printed = run(*STARTS[start], str(tmp_path / "mark"))
    assert f"killed True sum {sum(range(ROWS))}" in printed
    assert target.scan(order=True).to_arrow() == source.scan(order=True).to_arrow()
    changes = target.changes(began, net=False).to_arrow()
    assert changes["_op"].to_pylist() == ["insert"] * ROWS
    assert len(set(changes["_timestamp"].to_pylist())) == 1
