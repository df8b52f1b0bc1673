"""A crash of a flush or compaction between any two file operations leaves the old cut or the new one."""

import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.alteration import AddColumn, DropColumn, RenameColumn
from nyala.common.errors import AlreadyPresent, Corrupt
from nyala.tablet.files import manifest
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.maintain import flush
from nyala.tablet.tablet import Tablet
from tests.selected import first
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import ProcessDied
from tests.unit.tablet.support.tablet_crash import everything, prepared
from tests.unit.tablet.support.tablet_support import Driver, info


def altered(disk: SimDisk) -> Driver:
    """The next flush is the first with another schema."""
    driver = prepared(disk)
    driver.alter(DropColumn("s"), AddColumn("n", pa.int32(), default=7), RenameColumn("k", "key"))
    driver.write(RowOp.UPSERT, [{"key": 3, "n": 8}], ["key", "n"])
    return driver


PREPARED: dict[str, Callable[[SimDisk], Driver]] = {
    "flush": prepared,
    "compact": prepared,
    "flush_all_marks": prepared,
    "flush_schema": altered,
}


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power_cut"])
@pytest.mark.parametrize("work", first(PREPARED, 2))
def test_crash_between_file_operations_leaves_old_or_new_cut(work, power_cut, monkeypatch):
    if work == "flush_all_marks":  # one `del` file replaces all of a rowset
        monkeypatch.setattr(flush, "MAX_DEL_FILES", 1)
    finished, steps, cuts = False, 0, set()
    while not finished:
        steps += 1
        assert steps < 60
        disk = SimDisk(random.Random(steps))
        driver = PREPARED[work](disk)
        expected, old = everything(driver), driver.tablet.flush_point
        disk.die_after(steps)
        try:
            assert driver.compact() if work == "compact" else driver.flush()
            finished = True
        except ProcessDied:
            (disk.crash if power_cut else disk.kill)()
        disk.die_at = None
        driver.files = disk.mount()
        driver.reopen()
        assert driver.tablet.flush_point in (old, driver.flush_point())
        cuts.add(driver.tablet.flush_point.op)
        names = driver.files.list("data/t")
        assert names == sorted(manifest.load(driver.files, "data/t").file_names())
        assert everything(driver) == expected
        driver.flush()
        driver.compact()
        driver.reopen()
        assert everything(driver) == expected
    assert steps > 12
    assert len(cuts) == (1 if work == "compact" else 2)


def test_flush_failed_by_full_disk_is_completed_by_next_flush():
    failures, full = 0, True
    while full:
        disk = SimDisk(random.Random(failures))
        driver = prepared(disk)
        before = driver.tablet.flush_point
        disk.faults.capacity_bytes = disk.used_bytes() + 170 * failures
        try:
            full = not driver.flush()
        except OSError:
            failures += 1
            assert driver.tablet.flush_point == before
        driver.write(RowOp.UPSERT, [{"k": 1, "a": 60, "s": "late"}])
        driver.write(RowOp.DELETE, [{"k": 8}], ["k"])
        expected = everything(driver)
        disk.faults.capacity_bytes = None
        assert driver.flush()
        assert driver.tablet.flush_point == driver.flush_point()
        assert driver.tablet.unflushed_bytes() == 0
        assert everything(driver) == expected
        driver.reopen()
        assert everything(driver) == expected
    assert failures > 8


def test_new_files_and_manifest_are_durable_before_old_files_are_removed():
    disk = SimDisk(random.Random(5))
    driver = prepared(disk)
    noted: list[str] = []
    files: Any = driver.files
    files._changing = lambda kind, path, detail="": noted.append(kind)
    assert driver.compact()
    removed = noted.index("remove")
    assert noted[removed:] == ["remove"] * 5
    switch = ["create", "write_new", "sync", "rename", "sync_dir"]
    assert noted[:removed][-6:] == ["sync_dir", *switch]
    assert noted.count("create") == 2 + 3 + 1  # live rows, history and its `del` file, the manifest
    assert noted.count("sync_dir") == 2


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power_cut"])
def test_crash_during_creation_leaves_tablet_or_nothing(power_cut):
    finished, steps = False, 0
    while not finished:
        steps += 1
        disk = SimDisk(random.Random(steps))
        disk.die_after(steps)
        try:
            Tablet.create(disk.mount(), "data/t", info())
            finished = True
        except ProcessDied:
            (disk.crash if power_cut else disk.kill)()
        disk.die_at = None
        files = disk.mount()
        if not finished and not files.exists(f"data/t/{manifest.NAME}"):
            Tablet.create(files, "data/t", info())
        assert Tablet.open(files, "data/t").info == info()
        assert files.list("data/t") == [manifest.NAME]
    assert steps == 7


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power_cut"])
def test_crash_during_opening_changes_nothing(power_cut):
    """The files removed there are those of an earlier crash."""
    finished, steps = False, 0
    while not finished:
        steps += 1
        disk = SimDisk(random.Random(steps))
        driver = prepared(disk)
        driver.flush()
        expected = everything(driver)
        for stray in ("00000090.idx", "00000091.dat", "00000092.del", "MANIFEST.tmp"):
            driver.files.write_new(f"data/t/{stray}", [b"left over"])
        disk.die_after(steps)
        try:
            driver.reopen()
            finished = True
        except ProcessDied:
            (disk.crash if power_cut else disk.kill)()
        disk.die_at = None
        driver.files = disk.mount()
        driver.reopen()
        assert everything(driver) == expected
        assert "MANIFEST.tmp" not in driver.files.list("data/t")
    assert steps == 6


def test_files_of_killed_process_used_by_next_one_survive_power_failure():
    """The new manifest has its name, which is not synced; the log is collected by it."""
    for seed in range(12):
        disk = SimDisk(random.Random(seed))
        driver = prepared(disk)
        expected, old = everything(driver), driver.tablet.flush_point
        renamed: list[str] = []

        def in_the_last_sync(kind, path, renamed=renamed):
            renamed += [path] if kind == "rename" else []
            return kind == "sync_dir" and bool(renamed)

        disk.die_when = in_the_last_sync
        with pytest.raises(ProcessDied):
            driver.flush()
        disk.kill()
        driver.files = disk.mount()
        driver.reopen()
        stood = driver.tablet.flush_point
        assert stood not in (old, None)
        disk.crash()
        driver.files = disk.mount()
        driver.reopen()
        assert driver.tablet.flush_point == stood
        assert everything(driver) == expected


def test_creation_is_durable_and_refuses_to_overwrite():
    disk = SimDisk(random.Random(1))
    driver = Driver("data/t", files=disk.mount())
    disk.crash()
    opened = Tablet.open(disk.mount(), "data/t")
    assert opened.info == driver.tablet.info
    with pytest.raises(AlreadyPresent, match="holds a tablet already"):
        Tablet.create(disk.mount(), "data/t", driver.tablet.info)


def test_opening_a_directory_without_manifest_is_refused():
    disk = SimDisk(random.Random(1))
    files = disk.mount()
    files.make_dir("data/empty")
    with pytest.raises(Corrupt, match="no MANIFEST"):
        Tablet.open(files, "data/empty")
