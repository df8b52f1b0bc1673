"""Jobs on Spark whose drivers are killed, each at its next step, until one ends."""

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import nyala
from nyala.spark.jobs.file_export import PARTIAL
from tests.spark.kills.killed_commands import FOLDER
from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
PARTS = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
ROWS = 300
KILLED = -signal.SIGKILL


@pytest.fixture
def table(client):
    made = client.create_table("killed", SCHEMA, ["k"], PARTS, replicas=1)
    made.upsert([{"k": k, "v": f"row {k}"} for k in range(ROWS)])
    yield made
    for name in client.tables():
        client.drop_table(name)


@pytest.fixture
def run(cluster, tmp_path):
    """Runs a job with a step at which its driver ends, 0: none; returns the status and the errors."""

    def job(step, *words):
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.kills.killed_job", str(step), *words], cwd=ROOT, text=True,
            env=os.environ | cluster.environment | {FOLDER: str(tmp_path)}, capture_output=True,
            timeout=within(200), check=False,
        )  # fmt: skip
        return done.returncode, done.stderr

    return job


def rows(table):
    return table.scan(order=True).to_arrow()


def test_export_that_is_killed_at_any_step_is_made_by_the_next_one(run, table, tmp_path):
    target = tmp_path / "out"
    words = ("export", table.name, str(target))
    for step in itertools.count(1):
        status, text = run(step, *words)
        if status != KILLED or target.exists():
            break
    assert step > 3
    assert status in (0, KILLED), text
    assert pq.read_table(target).sort_by("k").cast(SCHEMA) == rows(table).cast(SCHEMA)
    assert all(p.name.startswith("part-") for p in target.iterdir())
    left = tmp_path / (target.name + PARTIAL)
    assert not left.exists() or not any(left.iterdir())


def test_import_and_copy_that_are_killed_at_any_step_are_completed_by_the_next_one(
    client, run, table, tmp_path
):
    source = tmp_path / "rows.parquet"
    pq.write_table(rows(table), source)
    jobs = {
        "import": (str(source), "one", ("--create", "--key", "k", "--replicas", "1"), ()),
        "copy": (table.name, "one copied", (), ("--existing",)),
    }
    for name, (what, target, first, again) in jobs.items():
        for step in itertools.count(1):
            more = again if target in client.tables() else first
            status, text = run(step, name, what, target, *more)
            if status != KILLED:
                break
        assert status == 0, text
        assert step > 1
        assert rows(client.table(target)) == rows(table)
