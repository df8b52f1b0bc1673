"""The superblock's bytes, and where a reopened core begins in its log."""

from pathlib import Path

import pytest

from nyala.common.errors import BadChecksum, BadVersion, Corrupt, LogGap
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.env.files import SystemFiles
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.replica import superblock
from nyala.replica.bootstrap import fit, newest
from nyala.replica.state_machine import Cut
from nyala.replica.superblock import Stage, Superblock, Superblocks

GOLDEN = Path(__file__).parents[2] / "golden" / "replica"
GROUP = TabletId("7" * 32)
BURIED = Superblock(GROUP, Stage.TOMBSTONED, HardState(4, ServerUuid("a" * 32)), OpId(3, 1 << 40))


@pytest.mark.parametrize("block", [BURIED, Superblock(GROUP, Stage.READY)])
def test_a_superblock_survives_its_bytes_and_its_file(tmp_path, block):
    assert superblock.decode(superblock.encode(block), "x") == block
    blocks = Superblocks(SystemFiles(), str(tmp_path))
    assert blocks.load(GROUP) is None
    assert blocks.groups() == []
    blocks.save(block)
    assert Superblocks(SystemFiles(), str(tmp_path)).load(GROUP) == block
    assert blocks.groups() == [GROUP]
    blocks.delete(GROUP)
    blocks.delete(GROUP)
    assert blocks.groups() == []


def test_the_superblock_of_version_1_can_be_read():
    raw = (GOLDEN / "superblock-v1.bin").read_bytes()
    assert superblock.decode(raw, "golden") == BURIED
    assert superblock.encode(BURIED) == raw


def test_a_damaged_superblock_is_refused_whichever_byte_it_is():
    raw = superblock.encode(BURIED)
    for offset in range(len(raw)):
        bad = raw[:offset] + bytes([raw[offset] ^ 4]) + raw[offset + 1 :]
        with pytest.raises(BadChecksum):
            superblock.decode(bad, "the path")
    for length in range(len(raw)):
        with pytest.raises(BadChecksum):
            superblock.decode(raw[:length], "the path")


def test_a_superblock_of_another_version_or_another_group_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(superblock, "FORMAT_VERSION", 2)
    newer = superblock.encode(BURIED)
    monkeypatch.undo()
    with pytest.raises(BadVersion, match="version 2"):
        superblock.decode(newer, "x")
    blocks = Superblocks(SystemFiles(), str(tmp_path))
    blocks.save(BURIED)
    (tmp_path / "superblock" / GROUP).rename(tmp_path / "superblock" / ("8" * 32))
    with pytest.raises(Corrupt, match="moved files"):
        blocks.load(TabletId("8" * 32))


def log(first, last, term=1):
    return [Entry(OpId(term, i), 10 * i, EntryKind.OPERATION) for i in range(first, last + 1)]


def cut(index, term=1):
    return Cut(OpId(term, index) if index else NO_OP, 10 * index)


def test_a_whole_log_begins_at_nothing_whatever_the_files_hold():
    base, stamp, entries = fit(log(1, 9), cut(4))
    assert (base, stamp, len(entries)) == (NO_OP, 0, 9)


def test_a_log_that_goes_back_before_the_cut_stays_for_followers():
    base, stamp, entries = fit(log(3, 9), cut(6))
    assert (base, stamp) == (OpId(1, 3), 30)
    assert [e.id.index for e in entries] == [4, 5, 6, 7, 8, 9]


def test_a_log_that_begins_right_after_the_cut_follows_it():
    base, stamp, entries = fit(log(7, 9), cut(6))
    assert (base, stamp, entries[0].id.index) == (OpId(1, 6), 60, 7)
    assert fit([], cut(6)) == (OpId(1, 6), 60, ())
    assert fit([], cut(0)) == (NO_OP, 0, ())


@pytest.mark.parametrize(("entries", "files"), [(log(8, 9), cut(6)), (log(1, 5), cut(6))])
def test_missing_entries_are_a_gap_never_a_shorter_log(entries, files):
    with pytest.raises(LogGap):
        fit(entries, files)


def test_log_and_files_that_disagree_are_corrupt():
    with pytest.raises(Corrupt, match=r"1\.6.*2\.6"):
        fit(log(1, 9, term=2), cut(6))


def test_the_later_promise_counts():
    a, b = ServerUuid("a"), ServerUuid("b")
    assert newest(HardState(2, a), None) == HardState(2, a)
    assert newest(HardState(2, a), HardState(3)) == HardState(3)
    assert newest(HardState(3, a), HardState(2, b)) == HardState(3, a)
    assert newest(HardState(3), HardState(3, b)) == HardState(3, b)
    assert newest(HardState(3, a), HardState(3)) == HardState(3, a)
    with pytest.raises(Corrupt, match="vote"):
        newest(HardState(3, a), HardState(3, b))
