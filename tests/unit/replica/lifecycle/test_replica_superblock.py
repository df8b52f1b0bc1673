"""The superblock's bytes, and the index at which a reopened core begins."""

from pathlib import Path

import pytest

from nyala.common.errors import BadChecksum, BadVersion, Corrupt, LogGap
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.env.files import SystemFiles
from nyala.raft.messages import HardState
from nyala.replica import superblock
from nyala.replica.member.bootstrap import choose_base, newest
from nyala.replica.state_machine import FlushPoint
from nyala.replica.superblock import ReplicaStage, Superblock, Superblocks
from nyala.wal.recovery.recovered import RecoveredGroup

GOLDEN = Path(__file__).parents[3] / "golden" / "replica"
GROUP = TabletId("7" * 32)
TOMBSTONED = Superblock(
    GROUP, ReplicaStage.TOMBSTONED, HardState(4, ServerUuid("a" * 32)), OpId(3, 1 << 40)
)


@pytest.mark.parametrize("block", [TOMBSTONED, Superblock(GROUP, ReplicaStage.READY)])
def test_superblock_round_trips_through_bytes_and_file(tmp_path, block):
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


def test_superblock_of_version_1_is_readable():
    raw = (GOLDEN / "superblock-v1.bin").read_bytes()
    assert superblock.decode(raw, "golden") == TOMBSTONED
    assert superblock.encode(TOMBSTONED) == raw


def test_superblock_with_any_damaged_byte_is_refused():
    raw = superblock.encode(TOMBSTONED)
    for offset in range(len(raw)):
        bad = raw[:offset] + bytes([raw[offset] ^ 4]) + raw[offset + 1 :]
        with pytest.raises(BadChecksum):
            superblock.decode(bad, "the path")
    for length in range(len(raw)):
        with pytest.raises(BadChecksum):
            superblock.decode(raw[:length], "the path")


def test_superblock_of_other_version_or_group_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(superblock, "FORMAT_VERSION", 2)
    newer = superblock.encode(TOMBSTONED)
    monkeypatch.undo()
    with pytest.raises(BadVersion, match="version 2"):
        superblock.decode(newer, "x")
    blocks = Superblocks(SystemFiles(), str(tmp_path))
    blocks.save(TOMBSTONED)
    (tmp_path / "superblock" / GROUP).rename(tmp_path / "superblock" / ("8" * 32))
    with pytest.raises(Corrupt, match="moved files"):
        blocks.load(TabletId("8" * 32))


def log(first, last, term=1):
    ends = OpId(term, first), OpId(term, last)
    return RecoveredGroup(first, ends[1], (ends[0],))


def flush_point(index, term=1):
    return FlushPoint(OpId(term, index) if index else NO_OP, 10 * index)


def test_complete_log_starts_at_zero_regardless_of_files():
    assert choose_base(log(1, 9), flush_point(4)) == (NO_OP, [OpId(1, 1), OpId(1, 4)])
    assert choose_base(log(1, 9), flush_point(0)) == (NO_OP, [])


def test_log_before_cut_is_kept_for_followers():
    assert choose_base(log(3, 9), flush_point(6)) == (OpId(1, 3), [OpId(1, 6)])


def test_terms_of_kept_log_entries_are_known():
    starts = OpId(1, 3), OpId(2, 5), OpId(4, 8)
    found = choose_base(RecoveredGroup(3, OpId(4, 9), starts), flush_point(6, term=2))
    assert found == (OpId(1, 3), [OpId(2, 5), OpId(2, 6)])


def test_log_starting_after_cut_is_contiguous():
    assert choose_base(log(7, 9), flush_point(6)) == (OpId(1, 6), [])
    assert choose_base(RecoveredGroup(), flush_point(6)) == (OpId(1, 6), [])
    assert choose_base(RecoveredGroup(), flush_point(0)) == (NO_OP, [])


@pytest.mark.parametrize(
    ("logged", "files"), [(log(8, 9), flush_point(6)), (log(1, 5), flush_point(6))]
)
def test_missing_entries_are_a_gap_not_a_shorter_log(logged, files):
    with pytest.raises(LogGap):
        choose_base(logged, files)


def test_log_contradicting_files_is_corrupt():
    with pytest.raises(Corrupt, match=r"1\.6.*2\.6"):
        choose_base(log(1, 9, term=2), flush_point(6))


def test_higher_of_superblock_and_cmeta_vote_is_used():
    a, b = ServerUuid("a"), ServerUuid("b")
    assert newest(HardState(2, a), None) == HardState(2, a)
    assert newest(HardState(2, a), HardState(3)) == HardState(3)
    assert newest(HardState(3, a), HardState(2, b)) == HardState(3, a)
    assert newest(HardState(3), HardState(3, b)) == HardState(3, b)
    assert newest(HardState(3, a), HardState(3)) == HardState(3, a)
    with pytest.raises(Corrupt, match="vote"):
        newest(HardState(3, a), HardState(3, b))
