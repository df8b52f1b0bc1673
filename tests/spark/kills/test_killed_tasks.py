"""Jobs whose executor is killed at each step of a task: its tasks run again, and the rows are the same."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from tests.spark.kills.killed_tasks import TABLE
from tests.spark.kills.killing_daemon import FOLDER, STEPS
from tests.spark.modes.conftest import environment
from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_500)]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
PARTS = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
JOBS = ("import", "export", "copy", "backup", "restore")


@pytest.fixture(scope="module")
def found(cluster, client, tmp_path_factory):
    """For each job and step: an executor was killed, and the rows are right."""
    table = client.create_table(TABLE, SCHEMA, ["k"], PARTS, replicas=1)
    table.upsert([{"k": k, "v": f"row {k}"} for k in range(300)]).raise_for_errors()
    folder = tmp_path_factory.mktemp("kills")
    with (folder / "log").open("w") as log:
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.kills.killed_tasks"], cwd=Path(__file__).parents[3],
            env=environment(cluster.masters) | {FOLDER: str(folder)}, stdout=subprocess.PIPE, stderr=log,
            text=True, timeout=within(600), check=False,
        )  # fmt: skip
    for name in client.tables():
        client.drop_table(name)
    assert done.returncode == 0, f"{done.stdout}\n{(folder / 'log').read_text()[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("job", JOBS)
def test_executor_killed_in_a_task_loses_and_doubles_no_row(found, job, step):
    assert found[f"{job}, {step}"] == [True, True]
