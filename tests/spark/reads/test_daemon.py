"""The daemon of Spark's workers has what tasks import, and nothing that does not survive a fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "src"
PROGRAM = """
import sys, threading
from nyala.spark.daemon import preload
preload("pyspark.worker")
for name in ("pyspark.worker", "pandas", "pyarrow.compute", "nyala.client.scan_token", "nyala.spark.reader"):
    assert name in sys.modules, name
assert "pyspark.sql.worker.data_source_pushdown_filters" not in sys.modules
assert threading.active_count() == 1, threading.enumerate()
"""


@pytest.mark.full
def test_daemon_imports_for_tasks_and_starts_no_thread():
    environment = os.environ | {"PYTHONPATH": str(SOURCE)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stdout  # Spark reads the daemon's port from there
