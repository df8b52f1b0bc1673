"""Drivers of a pipeline that are killed or stopped at each point: every step takes effect once."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.spark.pipelines import killed_steps
from tests.spark.pipelines.killed_steps import ROWS, TABLE
from tests.waiting import wait_until, within

pytestmark = [pytest.mark.full, pytest.mark.timeout(1_000)]
ROOT = Path(__file__).parents[3]
COMMAND = [
    sys.executable, "-m", "nyala", "pipeline", "run", killed_steps.__file__, "--standby", "--run-id",
]  # fmt: skip
POINTS = (
    "before load", "in load", "after load", "between", "after two", "before the commit", "after the commit",
)  # fmt: skip
KEYS = [first + n for first in (0, 1_000, 2_000, 3_000) for n in range(ROWS)]


@pytest.fixture
def table(client):
    yield client.create_table(
        TABLE, pa.schema([("k", pa.int64()), ("run", pa.string())]), ["k"], replicas=1
    )
    client.drop_table(TABLE)
    client.drop_journal("pipelines")


@pytest.fixture
def start(cluster, tmp_path):
    """Start drivers of a run with the name of the folder; kill what is left of them at the end."""
    marks = tmp_path / "marks"
    marks.mkdir()
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    drivers: list[subprocess.Popen[str]] = []

    def started(**more: str) -> subprocess.Popen[str]:
        environment = os.environ | {
            "NYALA_MASTERS": cluster.masters, "PYTHONPATH": paths, "MARKS": str(marks),
            "SPARK_LOCAL_IP": "127.0.0.1", **more,
        }  # fmt: skip
        with (tmp_path / f"driver-{len(drivers)}.log").open("w") as log:
            drivers.append(
                subprocess.Popen(
                    [*COMMAND, tmp_path.name], cwd=tmp_path, env=environment, text=True,
                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
                )
            )  # fmt: skip
        return drivers[-1]

    with ExitStack() as ended:
        ended.callback(_end_all, drivers)
        yield started


def _end_all(drivers: list[subprocess.Popen[str]]) -> None:
    for driver in drivers:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()


def _ended(drivers: list[subprocess.Popen[str]]) -> subprocess.Popen[str] | None:
    return next((d for d in drivers if d.poll() is not None), None)


def _result(driver: subprocess.Popen[str]) -> dict[str, Any]:
    printed, _ = driver.communicate(timeout=within(300))
    assert driver.returncode == 0
    return dict(json.loads(printed.splitlines()[-1]))


def _check(table, began, run):
    changes = table.changes(began, net=False).to_arrow()
    assert sorted(changes["k"].to_pylist()) == KEYS
    assert changes["_op"].to_pylist() == ["insert"] * len(KEYS)
    assert set(changes["run"].to_pylist()) == {run}


def test_each_step_takes_effect_once_when_each_driver_is_killed(client, table, start, tmp_path):
    began = client.now()
    drivers = [start(), start()]
    killed: list[float] = []
    for _ in POINTS:
        first = wait_until(partial(_ended, drivers), "a driver is killed", timeout_s=300)
        assert first.returncode == -signal.SIGKILL
        killed.append(time.monotonic())
        drivers.remove(first)
        drivers.append(start())
    found = [_result(driver) for driver in drivers]
    assert {p.name for p in (tmp_path / "marks").iterdir()} == set(POINTS)
    results = {"load": ROWS, "two": 3 * ROWS, "last-rows": tmp_path.name}
    assert [f["results"] for f in found] == [results, results]
    assert sorted(len(f["own_steps"]) for f in found) == [0, 1]
    _check(table, began, tmp_path.name)
    print(
        "seconds between kills:",
        [round(b - a, 1) for a, b in pairwise(killed)],
    )


@pytest.mark.parametrize("name", ["between", "before the commit"])
def test_late_driver_changes_nothing(client, table, start, tmp_path, name):
    began = client.now()
    for other in POINTS:
        if other != name:
            (tmp_path / "marks" / other).touch()
    late = start(STOPPED=name)
    wait_until(lambda: (tmp_path / "marks" / name).exists(), "the driver is stopped", timeout_s=300)
    assert "load" not in _result(start())["own_steps"]
    _check(table, began, tmp_path.name)
    os.killpg(late.pid, signal.SIGCONT)
    assert _result(late)["results"]["last-rows"] == tmp_path.name
    _check(table, began, tmp_path.name)
