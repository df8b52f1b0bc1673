"""The demo on a small part of the year: all checks pass, except those that a changed cell fails."""

import json
import lzma
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from nyala.spark.flights.dataset import DIMENSIONS, SHIPPED, read
from tests.waiting import within

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent.parent
FLIGHTS = 1500


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The first flights of the year to load, and the same with one altered cell to compare with."""
    data, expect = tmp_path_factory.mktemp("data"), tmp_path_factory.mktemp("expect")
    lines = (
        lzma.decompress((SHIPPED / "flights.csv.xz").read_bytes())
        .decode()
        .splitlines()[: FLIGHTS + 1]
    )
    for name in DIMENSIONS:
        text = lzma.decompress((SHIPPED / f"{name}.csv.xz").read_bytes())
        for folder in (data, expect):
            (folder / f"{name}.csv").write_bytes(text)
    (data / "flights.csv").write_text("\n".join(lines) + "\n")
    cells = lines[700].split(",")
    cells[15] = str(int(cells[15]) + 1)  # distance: not changed by the change stream
    altered = [*lines[:700], ",".join(cells), *lines[701:]]
    (expect / "flights.csv").write_text("\n".join(altered) + "\n")
    return data, expect


@pytest.mark.timeout(580)
def test_altered_cell_fails_the_demo(folders, tmp_path):
    data, expect = folders
    words = [sys.executable, "-m", "examples.flights_demo", "--slices", "4", "--out", str(tmp_path)]
    done = subprocess.run(
        [*words, "--data", str(data), "--expect", str(expect)],
        cwd=ROOT, capture_output=True, text=True, timeout=within(560), check=False,
    )  # fmt: skip
    output = done.stdout
    assert done.returncode == 1, output[-3000:] + done.stderr[-3000:]
    good = [line.strip() for line in output.splitlines() if line.strip().startswith("✓")]
    bad = [line.strip() for line in output.splitlines() if line.strip().startswith("✗")]
    expected = ("flights: ", "the table as of slice", "restored in")
    assert all(any(text in line for text in expected) for line in bad), output[-6000:]
    assert any("flights: 1,500 rows" in line for line in bad), output[-3000:]
    assert len(good) >= 18, good
    assert any("groups of statistics" in line for line in good), good
    assert any("the driver was killed in slice 4" in line for line in good), good
    folded = " ".join(output.split())  # lines are folded at the terminal's width
    assert re.search(r"distance of \([^)]*\) is \d+, expected \d+", folded), output[-3000:]
    assert (tmp_path / "delay_by_carrier.png").stat().st_size > 10_000


@pytest.mark.timeout(580)
def test_flights_continue_in_a_stand_by_driver(folders, cluster, client):
    command = [
        sys.executable, "-m", "nyala", "pipeline", "flights", "--standby", "--slices", "3", "--tablets", "2",
        "--replicas", "1", "--masters", cluster.masters, "--data", str(folders[0]),
    ]  # fmt: skip
    first = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert first.stdout is not None
    try:
        assert any('"number": 1,' in line for line in first.stdout), first.wait()
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.communicate()
    second = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=within(400), check=False
    )
    assert second.returncode == 0, second.stderr[-3000:]
    own = [json.loads(line)["number"] for line in second.stdout.splitlines()]
    assert own in ([1, 2, 3], [2, 3]), second.stdout
    raw, loaded = read("flights", folders[0]), client.table("flights").scan().to_arrow()
    assert loaded.num_rows == raw.num_rows == FLIGHTS
    for name in ("arr_time", "dep_delay"):
        assert loaded[name].null_count == raw[name].null_count
