"""Answers of one replica to reads and tails, at any applied index."""

import pytest

from nyala.common.errors import LogGone, Unavailable
from nyala.journal import steps
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed
from nyala.tserver.journals import answers
from nyala.wire.proto import journal_pb2 as pb

CREATED = 20
"""Id of the log's creation."""


def state_through(last: int) -> JournalState:
    """Return a journal with one key, whose last change has this id."""
    state = JournalState(Unflushed(), limit_bytes=1 << 30)
    state.apply(steps.Step([], [steps.SetKey("k", b"v")]), last)
    return state


def asked(max_age_ms: int) -> pb.JournalReadRequest:
    """Return a read of a log by a reader that knows its creation."""
    return pb.JournalReadRequest(
        log=pb.ReadLog(log="a", created=CREATED), max_age_ms=max_age_ms, tablet_id="t"
    )


TAIL = pb.JournalTailRequest(log="a", created=CREATED, after=CREATED)


def test_replica_without_creation_of_log_is_unavailable():
    behind = state_through(CREATED - 1)
    with pytest.raises(Unavailable, match="retry, or read from another replica"):
        answers.tail(behind, TAIL, TAIL.after)
    with pytest.raises(Unavailable, match="retry, or read from another replica"):
        answers.read(behind, asked(max_age_ms=1000))


def test_replica_with_older_log_of_the_name_is_unavailable():
    behind = state_through(CREATED - 2)
    behind.apply(steps.Step([], [steps.Append("a", b"old")]), CREATED - 1)
    with pytest.raises(Unavailable):
        answers.tail(behind, TAIL, TAIL.after)


def test_replica_with_creation_of_deleted_log_reports_log_gone():
    ahead = state_through(CREATED)
    with pytest.raises(LogGone):
        answers.tail(ahead, TAIL, TAIL.after)
    with pytest.raises(LogGone):
        answers.read(ahead, asked(max_age_ms=1000))


def test_linearizable_read_of_log_lost_by_unsafe_recovery_is_log_gone():
    with pytest.raises(LogGone):
        answers.read(state_through(CREATED - 1), asked(max_age_ms=0))
