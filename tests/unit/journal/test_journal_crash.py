"""Flushes and merges of a journal that crash or fail at any file operation leave the old or the new cut."""

import random
from collections.abc import Callable

import pytest

from nyala.env.files import UNFINISHED
from nyala.journal import manifest, steps
from nyala.journal.journal import JournalMachine
from tests.sim.world.files import SimDisk
from tests.sim.world.loop import ProcessDied
from tests.unit.journal.journal_disk import DIRECTORY, INFO, JournalOnDisk, prepared

WORK: dict[str, Callable[[JournalOnDisk], bool]] = {
    "flush": JournalOnDisk.flush,
    "merge": JournalOnDisk.merge,
}


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power_cut"])
@pytest.mark.parametrize("work", WORK)
def test_crash_at_any_file_operation_leaves_old_or_new_cut(work, power_cut):
    finished, operations, cuts = False, 0, set()
    while not finished:
        operations += 1
        assert operations < 40
        one = prepared(operations)
        expected, old, new = one.content(), one.journal.flush_point, one.flush_point()
        one.disk.die_after(operations)
        try:
            assert WORK[work](one)
            finished = True
        except ProcessDied:
            (one.disk.crash if power_cut else one.disk.kill)()
        one.disk.die_at = None
        one.reopen()
        assert one.journal.flush_point in (old, new)
        cuts.add(one.journal.flush_point.op)
        named = manifest.load(one.files, DIRECTORY).file_names()
        assert one.files.list(DIRECTORY) == sorted(named)
        assert one.content() == expected
        one.flush()
        one.merge()
        one.reopen()
        assert one.content() == expected
    assert operations > 8
    assert len(cuts) == (2 if work == "flush" else 1)


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power_cut"])
def test_crash_during_creation_leaves_journal_or_nothing(power_cut):
    finished, operations = False, 0
    while not finished:
        operations += 1
        assert operations < 20
        disk = SimDisk(random.Random(operations))
        disk.die_after(operations)
        try:
            JournalMachine.create(disk.mount(), DIRECTORY, INFO)
            finished = True
        except ProcessDied:
            (disk.crash if power_cut else disk.kill)()
        disk.die_at = None
        files = disk.mount()
        if not finished and not files.exists(f"{DIRECTORY}/{manifest.NAME}"):
            JournalMachine.create(files, DIRECTORY, INFO)
        assert JournalMachine.open(files, DIRECTORY).info == INFO
        assert files.list(DIRECTORY) == [manifest.NAME]
    assert operations > 4


@pytest.mark.parametrize("work", WORK)
def test_work_failed_by_full_disk_is_completed_later(work):
    failures, full = 0, True
    while full:
        one = prepared(failures)
        before = one.journal.flush_point
        one.disk.faults.capacity_bytes = one.disk.used_bytes() + 40 * failures
        try:
            full = not WORK[work](one)
        except OSError:
            failures += 1
            assert failures < 100
            assert one.journal.flush_point == before
        one.apply(steps.Append("a", b"late"), steps.DeleteKey("k"))
        expected = one.content()
        one.disk.faults.capacity_bytes = None
        assert one.flush()
        assert one.journal.flush_point == one.flush_point()
        assert one.journal.unflushed_bytes() == 0
        one.merge()
        assert one.content() == expected
        one.reopen()
        assert one.content() == expected
    assert failures > 4


@pytest.mark.parametrize("work", WORK)
def test_work_that_a_full_disk_fails_leaves_no_files(work):
    """It is tried again each second: files left behind would take all space that is freed meanwhile."""
    failures, full = 0, True
    while full:
        one = prepared(failures)
        before = one.files.list(DIRECTORY)
        one.disk.faults.capacity_bytes = one.disk.used_bytes() + 40 * failures
        try:
            full = not WORK[work](one)
        except OSError:
            failures += 1
            left = [n for n in one.files.list(DIRECTORY) if not n.endswith(UNFINISHED)]
            assert left == before
    assert failures > 4


def test_merge_that_may_not_fit_beside_the_reserve_of_the_log_writes_nothing():
    one = prepared(1)
    names = [n for n in one.files.list(DIRECTORY) if n != manifest.NAME]
    size = sum(one.files.size(f"{DIRECTORY}/{n}") for n in names)
    one.disk.faults.capacity_bytes = one.disk.used_bytes() + size + 9_999
    build = one.journal.prepare_compaction(force=True, reserve_bytes=10_000)
    assert build is not None
    changes = one.disk.operations
    with pytest.raises(OSError, match="leaves 10000"):
        build()
    assert one.disk.operations == changes
    one.disk.faults.capacity_bytes += 1
    build = one.journal.prepare_compaction(force=True, reserve_bytes=10_000)
    assert build is not None
    build()()
