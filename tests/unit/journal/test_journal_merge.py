"""Merges of a journal's files: nothing that was undone returns, and the oldest file names nothing undone."""

import random

import pytest

from nyala.journal import merge, steps
from nyala.journal.data_file import DataFile, DeletedKey
from nyala.journal.manifest import data_name
from tests.sim.world.files import SimDisk
from tests.unit.journal.journal_disk import DIRECTORY, JournalOnDisk


@pytest.fixture
def undone() -> tuple[JournalOnDisk, int]:
    """Return a journal with three files, the newer of which undo what the first has; and the valid entry."""
    on_disk = JournalOnDisk(SimDisk(random.Random(1)))
    first, kept = on_disk.apply(steps.Append("a", b"undone"), steps.Append("a", b"kept"))
    (gone,) = on_disk.apply(steps.Append("b", b"of a deleted log"))
    on_disk.apply(steps.SetKey("k", b"deleted"), steps.SetKey("l", b"kept"))
    assert on_disk.flush()
    on_disk.apply(steps.Invalidate("a", (first,)), steps.Invalidate("b", (gone,)))
    assert on_disk.flush()
    on_disk.apply(steps.DeleteKey("k"), steps.DeleteLog("b"))
    assert on_disk.flush()
    return on_disk, kept


def check(on_disk: JournalOnDisk, kept: int) -> None:
    state = on_disk.journal.state
    assert list(state.logs) == ["a"]
    assert list(state.logs["a"].entries.read(0, state.last)) == [(kept, b"kept")]
    assert [(key.key, key.value) for key in state.keys.starting_with("")] == [("l", b"kept")]


def newest(on_disk: JournalOnDisk) -> DataFile:
    number = max(int(n[:8]) for n in on_disk.files.list(DIRECTORY) if n.endswith(".jnl"))
    return DataFile(on_disk.files, f"{DIRECTORY}/{data_name(number)}")


def test_merge_of_newest_files_keeps_what_they_undo(undone, monkeypatch):
    on_disk, kept = undone
    monkeypatch.setattr(merge, "choose", lambda sizes, valid_bytes: 2)
    build = on_disk.journal.prepare_compaction()
    assert build is not None
    build()()
    assert len([n for n in on_disk.files.list(DIRECTORY) if n.endswith(".jnl")]) == 2
    merged = newest(on_disk)
    assert [key for key in merged.all_keys() if isinstance(key, DeletedKey)] == [DeletedKey("k")]
    assert (len(merged.dropped), len(merged.invalid)) == (1, 1), "none of the deleted log's entries"
    on_disk.reopen()
    check(on_disk, kept)


def test_merge_of_all_files_names_nothing_undone(undone):
    on_disk, kept = undone
    assert on_disk.merge()
    base = newest(on_disk)
    assert (base.dropped, base.invalid, base.entries) == ([], [], 1)
    assert [key.key for key in base.all_keys()] == ["l"]
    on_disk.reopen()
    check(on_disk, kept)


def test_flush_beside_a_merge_and_merge_beside_a_flush_are_refused(undone):
    """The manifest of the one that ends last would lack the file of the other, or its flush point."""
    on_disk, kept = undone
    build = on_disk.journal.prepare_compaction(force=True)
    assert build is not None
    on_disk.apply(steps.SetKey("l", b"later"))
    assert on_disk.journal.prepare_flush(on_disk.flush_point()) is None
    build()()
    on_disk.apply(steps.SetKey("l", b"kept"))
    build = on_disk.journal.prepare_flush(on_disk.flush_point())
    assert build is not None
    assert on_disk.journal.prepare_compaction(force=True) is None
    build()()
    on_disk.reopen()
    check(on_disk, kept)
    assert on_disk.merge()


def test_changes_of_a_flush_under_way_count_as_unflushed():
    on_disk = JournalOnDisk(SimDisk(random.Random(1)))
    on_disk.apply(steps.Append("a", bytes(1000)))
    before = on_disk.journal.unflushed_bytes()
    build = on_disk.journal.prepare_flush(on_disk.flush_point())
    assert build is not None
    install = build()
    assert on_disk.journal.unflushed_bytes() == before > 1000
    install()
    assert on_disk.journal.unflushed_bytes() == 0
