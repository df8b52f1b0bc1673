"""Jobs that the user interrupts: exit status 130, one line about what stays, and the next run continues."""

import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest

from nyala.spark.jobs.commands import INTERRUPTED_JOBS
from tests.waiting import wait_until, within

pytestmark = pytest.mark.full
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.int64())])


@pytest.fixture
def source(client):
    made = client.create_table("source", SCHEMA, ["k"], replicas=1)
    made.upsert([{"k": k, "v": k} for k in range(100)])
    yield made
    for name in ("source", "followed"):
        client.drop_table(name)


def test_interrupt_ends_a_copy_that_follows_with_130_and_the_same_command_continues(
    cluster, client, source, tmp_path
):
    words = ("copy", "source", "followed", "--replicas", "1", "--follow", "--checkpoint")
    command = [sys.executable, "-m", "nyala", "pipeline", *words, str(tmp_path / "state")]
    options = {"cwd": tmp_path, "env": os.environ | {"NYALA_MASTERS": cluster.masters}}
    errors = tmp_path / "errors"

    def copied():
        return "followed" in client.tables() and client.table("followed").count() == 100

    with errors.open("w") as file:
        process = subprocess.Popen(command, stderr=file, start_new_session=True, **options)
    try:
        wait_until(copied, "the rows of the first step")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to all processes of the job
        status = process.wait(within(120))
    finally:
        process.kill()
        process.wait()
    text = errors.read_text()
    assert status == 130, text
    assert "Traceback" not in text
    assert text.splitlines()[-1] == f"nyala: interrupted; {INTERRUPTED_JOBS['copy']}"
    source.upsert([{"k": k, "v": 0} for k in range(50, 150)])
    done = subprocess.run(
        [*command, "--once"], capture_output=True, text=True, timeout=within(300), check=False, **options
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = client.table("followed").scan(order=True).to_arrow()
    assert found == source.scan(order=True).to_arrow()
