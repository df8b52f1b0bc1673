"""An error at each file operation of a journal in turn: nothing is lost, and a later attempt succeeds."""

import errno
import random
from collections.abc import Callable

import pytest

from nyala.common.errors import Corrupt
from nyala.journal import manifest, steps
from nyala.journal.journal import JournalMachine
from tests.sim.world.failing_files import Failing
from tests.sim.world.files import SimDisk
from tests.unit.journal.journal_disk import DIRECTORY, INFO, JournalOnDisk, prepared

ERRORS = pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "io_error"])


def checkpointed(one: JournalOnDisk) -> bool:
    """Hold the files for a copy while a flush and a merge replace them, and release them."""
    held = one.journal.checkpoint()
    try:
        one.flush()
        one.merge()
        for file in held.files:
            whole = one.files.read(f"{DIRECTORY}/{file.name}")
            assert len(whole) == file.size_bytes
    finally:
        held.release()
    return True


WORK: dict[str, Callable[[JournalOnDisk], bool]] = {
    "flush": JournalOnDisk.flush,
    "merge": JournalOnDisk.merge,
    "checkpoint": checkpointed,
}


@ERRORS
@pytest.mark.parametrize("late", [False, True], ids=["before_its_effect", "after_its_effect"])
@pytest.mark.parametrize("work", WORK)
def test_error_in_any_file_operation_fails_only_that_attempt(work, error, late):
    kinds, number, finished = [], 0, False
    while not finished:
        number += 1
        assert number < 80
        one = prepared(number)
        expected, cuts = one.content(), (one.journal.flush_point, one.flush_point())
        failing = Failing(one.files, number, error, late=late, reads=True)
        try:
            assert WORK[work](one)
            finished = failing.left > 0
        except OSError as err:
            if err.errno != error:
                raise
        failing.end()
        kinds.append(failing.kind)
        assert one.content() == expected, f"after an error in {failing.kind}"
        assert one.journal.flush_point in cuts
        _goes_on(one, work, expected, ("", "kill", "power cut")[number % 3])
    assert kinds[-1] == ""
    assert {"create", "append", "sync", "rename", "sync_dir", "list"} <= set(kinds)
    assert ("remove" in kinds) == (work != "flush")
    assert ("map" in kinds) == (work != "flush")


def _goes_on(one: JournalOnDisk, work: str, expected: tuple[object, ...], then: str) -> None:
    """After the error, or a crash after it, all work is done and no file is left over."""
    if then:
        (one.disk.crash if then == "power cut" else one.disk.kill)()
        one.reopen()
        assert one.content() == expected
    one.apply(steps.Append("a", b"late"), steps.DeleteKey("k"))
    expected = one.content()
    assert one.flush()
    assert one.journal.flush_point == one.flush_point()
    assert one.journal.unflushed_bytes() == 0
    assert WORK[work](one) or work == "flush"
    assert one.content() == expected
    named = manifest.load(one.files, DIRECTORY).file_names()
    assert one.files.list(DIRECTORY) == sorted(named)
    one.reopen()
    assert one.content() == expected


@ERRORS
@pytest.mark.parametrize("late", [False, True], ids=["before_its_effect", "after_its_effect"])
def test_error_during_creation_leaves_journal_or_nothing(error, late):
    number, finished = 0, False
    while not finished:
        number += 1
        assert number < 20
        files = SimDisk(random.Random(number)).mount()
        failing = Failing(files, number, error, late=late, reads=True)
        try:
            JournalMachine.create(files, DIRECTORY, INFO)
            finished = failing.left > 0
        except OSError:
            pass
        failing.end()
        if not finished and not files.exists(f"{DIRECTORY}/{manifest.NAME}"):
            JournalMachine.create(files, DIRECTORY, INFO)
        opened = JournalMachine.open(files, DIRECTORY)
        assert (opened.info, opened.state.items) == (INFO, 0)
    assert number > 7


@ERRORS
def test_error_during_opening_is_raised_and_retry_succeeds(error):
    """Also at each operation that reads; an unreadable page of a mapped file is damage."""
    kinds, number, finished = [], 0, False
    while not finished:
        number += 1
        assert number < 60
        one = prepared(number)
        expected = one.content()
        one.flush()
        for stray in ("00000090.jnl", "00000091.jnl", "JOURNAL.tmp"):
            one.files.write_new(f"{DIRECTORY}/{stray}", [b"left over"])
        failing = Failing(one.files, number, error, late=False, reads=True)
        try:
            JournalMachine.open(one.files, DIRECTORY)
            finished = failing.left > 0
        except OSError as err:
            if err.errno != error:
                raise
        failing.end()
        kinds.append(failing.kind)
        one.reopen()
        assert one.content() == expected
        named = manifest.load(one.files, DIRECTORY).file_names()
        assert one.files.list(DIRECTORY) == sorted(named)
    assert {"read", "map", "list", "size", "sync_dir", "remove"} <= set(kinds)


@pytest.mark.parametrize("number", range(3))
def test_unreadable_page_of_mapped_file_is_damage_and_nothing_is_removed(monkeypatch, number):
    one = prepared(1)
    one.flush()
    one.files.write_new(f"{DIRECTORY}/stray", [b"left over"])
    found = iter([None] * number + [7])
    monkeypatch.setattr(one.files, "unreadable_offset", lambda mapped: next(found))
    with pytest.raises(Corrupt, match=f"0000000{number + 1}.jnl"):
        JournalMachine.open(one.files, DIRECTORY)
    assert one.files.exists(f"{DIRECTORY}/stray")
