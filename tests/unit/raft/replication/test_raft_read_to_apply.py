"""Committed entries that are not in memory are read in order, one read at a time."""

import pytest

from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft.log_view import LogView
from nyala.raft.membership import Member, initial
from nyala.raft.messages import Entry, EntryKind, HardState
from nyala.raft.node import RaftNode


def entries(first, last):
    return [Entry(OpId(1, i), 10 * i, EntryKind.OPERATION, b"x") for i in range(first, last + 1)]


def behind():
    """Twenty entries, of which fifteen are committed and on disk only, and five are applied."""
    log = LogView(NO_OP, 150, entries(16, 20), 1000, [OpId(1, 1), OpId(1, 15)])
    log.committed = 20
    log.applied = log.handed_apply = 5
    return log


def test_next_entries_are_read_when_earlier_ones_are_applied():
    log = behind()
    assert log.take_missing() == 6
    assert log.take_missing() == 0, "a read is in progress"
    assert log.take_applicable() == ()
    assert log.load(entries(6, 12)) == tuple(entries(6, 12))
    assert log.take_missing() == 0, "the entries that were read are not applied yet"
    log.note_applied(12)
    assert log.take_missing() == 13
    assert log.load(entries(13, 20)) == tuple(entries(13, 15)), (
        "the remaining entries are in memory"
    )
    assert log.take_applicable() == tuple(entries(16, 20))
    log.note_applied(20)
    assert log.take_missing() == 0


def test_missing_committed_entries_fail_the_replica():
    log = behind()
    log.take_missing()
    with pytest.raises(AssertionError, match="not in the log any more"):
        log.load([])
    with pytest.raises(AssertionError, match="was read"):
        log.load(entries(8, 12))


def test_entries_read_from_log_are_applied_before_cached_ones():
    one = ServerUuid("1")
    node = RaftNode(
        one, initial([Member(one, "1:1")]), HardState(1), entries(16, 20), base_stamp=150,
        skipped=[OpId(1, 1), OpId(1, 15)], commit_index=20, applied_index=5, random=lambda _: 0,
    )  # fmt: skip
    (request,) = node.ready().read
    assert (request.peer, request.first_index) == (one, 6)
    node.entries_read(one, entries(6, 15))
    assert node.ready().apply == tuple(entries(6, 20))
