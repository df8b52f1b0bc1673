"""A full or failing disk at each file operation in turn: no row is lost, and a later attempt succeeds."""

import errno
import random
from collections.abc import Callable

import pytest

from nyala.env.files import UNFINISHED
from nyala.tablet.files import manifest
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from tests.selected import first
from tests.sim.world.failing_files import Failing
from tests.sim.world.files import SimDisk
from tests.unit.tablet.support.tablet_crash import everything, prepared
from tests.unit.tablet.support.tablet_support import Driver, info

WORKS: dict[str, Callable[[Driver], bool]] = {
    "flush": Driver.flush,
    "compact": Driver.compact,
    "collect": lambda driver: driver.compact(driver.log[0].stamp),
}
HOW = [(errno.ENOSPC, False), (errno.EIO, True)]
REMOVES = {"compact", "collect"}


@pytest.mark.row("A16")
@pytest.mark.parametrize(("error", "late"), HOW, ids=["full", "io_error_after"])
@pytest.mark.parametrize("work", first(WORKS))
def test_error_in_any_file_operation_fails_only_that_attempt(work, error, late):
    kinds, number, finished = [], 0, False
    while not finished:
        number += 1
        disk = SimDisk(random.Random(number))
        driver = prepared(disk)
        expected = readable(driver, work)
        failing = Failing(driver.files, number, error, late=late)
        try:
            assert WORKS[work](driver)
            finished = failing.left > 0
        except OSError as err:
            if err.errno != error:
                raise
        failing.end()
        kinds.append(failing.kind)
        assert readable(driver, work) == expected, f"after an error in {failing.kind}"
        after_a_crash(disk, driver, work, expected, (None, False, True)[number % 3])
    assert kinds[-1] == ""
    assert {"create", "append", "sync", "rename", "sync_dir"} <= set(kinds)
    assert ("remove" in kinds) == (work in REMOVES)
    assert len(kinds) > 12


def readable(driver: Driver, work: str) -> list[object]:
    """Read all times, without the first ones if their history may have expired."""
    if work == "collect":
        return [driver.rows(o.stamp, ordered=True) for o in driver.log[1:]]
    return everything(driver)


def after_a_crash(
    disk: SimDisk, driver: Driver, work: str, expected: list[object], power_cut: bool | None
) -> None:
    """The tablet continues after the failure, a kill or a power failure; no file is left over."""
    if power_cut is not None:
        (disk.crash if power_cut else disk.kill)()
        driver.files = disk.mount()
        driver.reopen()
        assert readable(driver, work) == expected
    driver.write(RowOp.UPSERT, [{"k": 70, "a": 1, "s": "more"}])
    expected += readable(driver, work)[len(expected) :] if work == "collect" else []
    again = readable(driver, work)
    driver.flush()
    assert driver.tablet.unflushed_bytes() == 0
    WORKS[work](driver)
    assert readable(driver, work) == again
    names = driver.files.list("data/t")
    assert names == sorted(manifest.load(driver.files, "data/t").file_names())
    expected[:] = again


@pytest.mark.parametrize("work", WORKS)
def test_work_that_a_full_disk_fails_leaves_no_files(work):
    """It is tried again each second: files left behind would take all space that is freed meanwhile."""
    failures, full = 0, True
    while full:
        driver = prepared(disk := SimDisk(random.Random(failures)))
        before = driver.files.list("data/t")
        disk.faults.capacity_bytes = disk.used_bytes() + 170 * failures
        try:
            full = not WORKS[work](driver)
        except OSError:
            failures += 1
            left = [n for n in driver.files.list("data/t") if not n.endswith(UNFINISHED)]
            assert left == before
    assert failures > 4


def test_compaction_that_may_not_fit_on_the_disk_writes_nothing():
    """The log and flushes need the space that it would take at each attempt."""
    driver = prepared(disk := SimDisk(random.Random(1)))
    size = sum(d.file_bytes for d in driver.tablet.store.disks)
    disk.faults.capacity_bytes = disk.used_bytes() + size + 9_999
    build = driver.tablet.prepare_compaction(force=True, reserve_bytes=10_000)
    assert build is not None
    failing = Failing(driver.files, 1, errno.EIO, late=False)  # the first change of any file
    with pytest.raises(OSError, match="a compaction in data/t writes up to") as refused:
        build()
    failing.end()
    assert refused.value.errno == errno.ENOSPC
    disk.faults.capacity_bytes += 1
    build = driver.tablet.prepare_compaction(force=True, reserve_bytes=10_000)
    assert build is not None
    build()()


def test_history_that_fills_the_disk_is_removed_from_it():
    """A rowset of which nothing is left needs no space, not even above the log's reserve."""
    disk = SimDisk(random.Random(1))
    driver = Driver("data/t", files=disk.mount())
    driver.write(RowOp.UPSERT, [{"k": k, "a": k, "s": 100 * "x"} for k in range(100)])
    driver.flush()
    driver.write(RowOp.DELETE, [{"k": k} for k in range(100)])
    driver.flush()
    size = sum(d.file_bytes for d in driver.tablet.store.disks)
    disk.faults.capacity_bytes = disk.used_bytes() + 10_000
    assert size > 2000
    build = driver.tablet.prepare_compaction(driver.log[-1].stamp, reserve_bytes=1 << 30)
    assert build is not None
    build()()
    assert sum(d.file_bytes for d in driver.tablet.store.disks) == 0


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "io_error"])
def test_error_during_creation_leaves_tablet_or_nothing(error):
    number, finished = 0, False
    while not finished:
        number += 1
        disk = SimDisk(random.Random(number))
        failing = Failing(files := disk.mount(), number, error, late=False)
        try:
            Tablet.create(files, "data/t", info())
            finished = failing.left > 0
        except OSError:
            failing.end()
            if failing.kind != "sync_dir":  # then the file exists, durable or not
                Tablet.create(files, "data/t", info())
        failing.end()
        assert Tablet.open(files, "data/t").rows == 0
    assert number == 7


def test_error_during_opening_is_raised_and_retry_succeeds():
    """The only changes are removals of files left over from a crash."""
    number, finished = 0, False
    while not finished:
        number += 1
        disk = SimDisk(random.Random(number))
        driver = prepared(disk)
        expected = everything(driver)
        driver.flush()
        for stray in ("00000090.idx", "00000091.dat", "MANIFEST.tmp"):
            driver.files.write_new(f"data/t/{stray}", [b"left over"])
        failing = Failing(driver.files, number, errno.EIO, late=False)
        try:
            driver.reopen()
            finished = failing.left > 0
        except OSError:
            failing.end()
            driver.reopen()
        assert everything(driver) == expected
        assert "MANIFEST.tmp" not in driver.files.list("data/t")
    assert number == 5
