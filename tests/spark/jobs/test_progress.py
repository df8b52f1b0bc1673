"""The progress of a job on a terminal; its result is one line of JSON on standard output."""

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress

import pyarrow as pa
import pytest

from tests.waiting import within

pytestmark = pytest.mark.full
SCHEMA = pa.schema([pa.field("k", pa.int64(), nullable=False), ("v", pa.float64())])
BAR = b"[Stage "


def read_all(terminal: int) -> bytes:
    """Return what is written to a terminal until its last writer has closed it."""
    found = b""
    with suppress(OSError):  # how Linux ends it
        while part := os.read(terminal, 1 << 16):
            found += part
    os.close(terminal)
    return found


@pytest.mark.parametrize("terminal", [True, False])
def test_stages_are_shown_on_a_terminal_only(cluster, client, tmp_path, terminal):
    client.create_table("shown", SCHEMA, ["k"], replicas=1)
    words = ["generate", "shown", "600000", "--masters", cluster.masters]
    shown, errors = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "nyala", "pipeline", *words], cwd=tmp_path,
        env=os.environ | cluster.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=errors,
    ) as job:  # fmt: skip
        os.close(errors)
        text = read_all(shown)
        printed, _ = job.communicate(timeout=within(200))
    client.drop_table("shown")
    assert job.returncode == 0, text
    assert (BAR in text) == terminal, text
    assert json.loads(printed)["rows"] == 600_000
