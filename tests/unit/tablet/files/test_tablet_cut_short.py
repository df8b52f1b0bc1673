"""A file truncated while it is mapped: an error with its position, no wrong row, no crash."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from nyala.common.errors import Corrupt
from nyala.tablet.files.replicated_ops import RowOp
from tests.unit.tablet.support.tablet_support import Driver, numbered, payload
from tests.waiting import within

ROOT = Path(__file__).parent.parent.parent.parent.parent
ROWS = 20_000


def opened(directory):
    """A tablet with one rowset of which every block was verified, as of a long-running server."""
    driver = Driver(directory)
    driver.write(RowOp.INSERT, numbered(0, ROWS))
    driver.flush()
    driver.reopen()
    assert len(driver.rows()) == ROWS
    return driver


def cut(driver, suffix):
    path = f"{driver.directory}/00000001.{suffix}"
    os.truncate(path, 4096)
    return path


def scan(driver):
    view = driver.tablet.view()
    for batch in view.scan(driver.now):
        batch.serialize()
        view.check()


def get(driver):
    keys = pa.record_batch({"k": [ROWS - 1]})
    return driver.tablet.view().get(driver.now, keys).to_pylist()


def update(driver):
    data = payload(driver.schema, RowOp.UPDATE, [{"k": ROWS - 1, "a": 1}], ["k", "a"])
    return driver.tablet.apply([driver.entry(data)])


def merge(driver):
    driver.compact()


CASES = {
    "scan": (scan, "dat"),
    "get": (get, "idx"),
    "get a value": (get, "dat"),
    "write": (update, "idx"),
    "write the rest of a row": (update, "dat"),
    "merge": (merge, "dat"),
}


def run(name, directory):
    work, suffix = CASES[name]
    driver = opened(directory)
    driver.write(RowOp.DELETE, [{"k": 1}], ["k"])
    driver.flush()
    manifest = Path(directory, "MANIFEST").read_bytes()
    path = cut(driver, suffix)
    with pytest.raises(Corrupt) as caught:
        print(f"{name}: came to {work(driver)}")
    assert caught.value.details["path"] == path
    assert int(caught.value.details["offset"]) >= 4096
    assert Path(directory, "MANIFEST").read_bytes() == manifest
    print(f"{name}: told", flush=True)


def run_all(directory):
    healthy = opened(f"{directory}/healthy")
    for name in CASES:
        run(name, f"{directory}/{name}")
    scan(healthy)  # blocks before the truncation are readable
    assert get(healthy)
    assert not healthy.compact(force=False)


def python(*words):
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    command = [sys.executable, *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=within(100), check=False, env=environ
    )


def test_truncated_mapped_file_raises_error_and_process_survives(tmp_path):
    """The test runs in its own process, since a failure would crash it."""
    done = python(__file__, str(tmp_path))
    assert done.stdout.splitlines() == [f"{name}: told" for name in CASES], done.stderr
    assert done.returncode == 0, done.stderr


def test_unrelated_bus_error_ends_the_process(tmp_path):
    program = f"""
import mmap, os
from nyala.env.files import SystemFiles
path = {str(tmp_path / "file")!r}
open(path, "wb").write(bytes(8192))
ours = SystemFiles().map(path)
with open(path, "rb") as file:
    other = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
os.truncate(path, 0)
assert ours[5000] == 0 and SystemFiles().unreadable_offset(ours) == 4096
print("told", flush=True)
other[5000]
"""
    done = python("-c", program)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "told\n"), done.stderr


if __name__ == "__main__":
    run_all(sys.argv[1])
