"""An atomic job whose driver is killed leaves nothing or everything; run again, it takes effect once."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.spark.modes.conftest import connect_server
from tests.spark.modes.exercise import ROWS
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
PROGRAM = [sys.executable, "-m", "tests.spark.modes.killed_driver"]
EXECUTORS = "local-cluster[2,1,1024]"


def kill_driver(process: subprocess.Popen[str]) -> None:
    """Kill a driver, its JVM included; executors of their own are left to find out by themselves."""
    pids = [process.pid]
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, rest = stat.read_text().rsplit(")", 1)
            if int(rest.split()[1]) == process.pid and name.endswith("(java"):
                pids.append(int(stat.parent.name))
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("moment", ["first", "last"])
@pytest.mark.parametrize("mode", ["executors", "connect"])
def test_killed_driver_leaves_nothing_or_everything(
    client, tables, started, run, tmp_path, mode, moment
):
    source, target = tables
    folder = tmp_path / "marks"
    folder.mkdir()
    how = "wait" if moment == "first" else "run"
    tasks = 1 if moment == "first" else 4
    with ExitStack() as stack:
        master = EXECUTORS
        if mode == "connect":
            master, server = connect_server(stack, started, tmp_path)
        job = stack.enter_context(started(*PROGRAM, master, str(folder), how))
        driver = server if mode == "connect" else job

        def reached() -> bool:
            assert job.poll() is None, (tmp_path / "python.log").read_text()[-4000:]
            return len(list(folder.glob(f"{moment} *"))) >= tasks

        wait_until(reached, "tasks have come so far", timeout_s=400)
        kill_driver(driver)
        left = target.count()
    assert left == 0 if moment == "first" else left in (0, ROWS)
    with ExitStack() as stack:
        if mode == "connect":
            master, _ = connect_server(stack, started, tmp_path)
        assert "written" in run(*PROGRAM, master, str(folder), "run")
    assert target.scan(order=True).to_arrow() == source.scan(order=True).to_arrow()
    changes = target.changes(0, net=False).to_arrow()
    assert changes["_op"].to_pylist() == ["insert"] * ROWS
    assert len(set(changes["_timestamp"].to_pylist())) == 1
