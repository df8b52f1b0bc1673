"""Backups and restores that are killed at every step: the same command, run again, gives the same result."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import nyala
from nyala.backup.folders import ELEMENT, MANIFEST
from tests.spark.kills.killed_commands import FOLDER
from tests.waiting import within

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[3]
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.string())])
PARTS = nyala.Partition(hash=[nyala.Hash(["k"], 2)])
NAME, COPY = "kept", "kept again"
KILLED = -signal.SIGKILL
FEWEST_STEPS = 8


@pytest.fixture
def table(client):
    made = client.create_table(NAME, SCHEMA, ["k"], PARTS, replicas=1)
    made.upsert([{"k": k, "v": f"first {k}"} for k in range(200)])
    made.alter().set_comment("of the test").commit()
    yield made
    client.drop_table(NAME)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "backups"


@pytest.fixture
def run(cluster, folder):
    """Runs a command; returns its exit status and what it printed."""
    environment = os.environ | cluster.environment | {FOLDER: str(folder)}
    program = [sys.executable, "-m", "tests.spark.kills.killed_commands"]
    with subprocess.Popen(
        program, cwd=ROOT, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        given, answers = process.stdin, process.stdout

        def command(step, *words):
            print(json.dumps([step, words]), file=given, flush=True)
            return json.loads(answers.readline())

        yield command
        given.close()
        process.wait(within(60))


def rows(table):
    return table.scan(order=True).to_arrow()


def check_folder(folder):
    """Check that a folder of backups has whole elements only, and nothing that a killed process left."""
    [own] = folder.iterdir()
    for path in own.iterdir():
        assert path.name in (".lock", "latest.json") or ELEMENT.fullmatch(path.name), path
    for element in own.glob("*-*"):
        known = json.loads((element / MANIFEST).read_text())
        files = {f["name"] for interval in known["intervals"] for f in interval["files"]}
        assert {p.name for p in element.iterdir()} == {MANIFEST, *files}


def check_restored(client, run, folder, table):
    """Check that a restore gives the table of now, and drop what it made."""
    status, text = run(0, "restore", str(folder), "--as", COPY)
    assert status == 0, text
    assert rows(client.table(COPY)) == rows(table)
    client.drop_table(COPY)


@pytest.mark.row("A22")
@pytest.mark.parametrize("kind", ["full", "incremental"])
def test_backup_that_is_killed_at_any_step_is_taken_by_the_next_one(
    client, run, folder, table, tmp_path, kind
):
    words = ("backup", NAME, str(folder))
    before = tmp_path / "before"
    if kind == "incremental":
        assert run(0, *words)[0] == 0
        folder.rename(before)
    table.delete([{"k": k} for k in range(50)])
    table.upsert([{"k": k, "v": "second"} for k in range(150, 300)])
    for step in itertools.count(1):
        shutil.rmtree(folder, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, folder)
        status, text = run(step, *words)
        if status == 0:
            break
        assert status == KILLED, text
        status, text = run(0, *words)
        assert status == 0, (step, text)
        check_folder(folder)
        status, text = run(0, "backup", "verify", str(folder))
        assert status == 0, (step, text)
        check_restored(client, run, folder, table)
    assert step > FEWEST_STEPS


def test_restore_that_is_killed_at_any_step_is_made_by_the_next_one(client, run, folder, table):
    assert run(0, "backup", NAME, str(folder))[0] == 0
    table.delete([{"k": k} for k in range(50)])
    assert run(0, "backup", NAME, str(folder))[0] == 0
    there = sorted(p.relative_to(folder) for p in folder.rglob("*"))
    words = ("restore", str(folder), "--as", COPY)
    for step in itertools.count(1):
        status, text = run(step, *words)
        if status == 0:
            break
        assert status == KILLED, text
        if COPY not in client.tables():
            status, text = run(0, *words)
            assert status == 0, (step, text)
        assert sorted(client.tables()) == [NAME, COPY]
        assert rows(client.table(COPY)) == rows(table)
        assert client.describe(COPY).comment == "of the test"
        assert sorted(p.relative_to(folder) for p in folder.rglob("*")) == there
        client.drop_table(COPY)
    assert step > FEWEST_STEPS
    client.drop_table(COPY)
