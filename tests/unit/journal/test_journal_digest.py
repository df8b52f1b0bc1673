"""Digest of a journal's content: what changes it, and what does not."""

import pytest

from nyala.journal import steps
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed


def state_after(*changes: steps.Change) -> JournalState:
    """Return the state after steps of one change each."""
    state = JournalState(Unflushed(), limit_bytes=1 << 30)
    for number, change in enumerate(changes):
        state.apply(steps.Step([], [change]), 10 + number)
    return state


BASE = (steps.Append("a", b"1"), steps.Append("a", b"2"), steps.SetKey("k", b"v"))


@pytest.mark.parametrize(
    "change",
    [
        steps.Invalidate("a", ()),
        steps.Invalidate("a", (10,)),
        steps.Append("a", b"3"),
        steps.Append("b", b"3"),
        steps.SetKey("k", b"w"),
        steps.DeleteKey("k"),
        steps.DeleteLog("a"),
    ],
    ids=lambda change: type(change).__name__,
)
def test_every_change_of_content_changes_digest(change):
    assert state_after(*BASE, change).digest != state_after(*BASE).digest


def test_digest_is_unchanged_after_key_is_set_and_deleted():
    before = state_after(*BASE)
    after = state_after(*BASE, steps.SetKey("x", b"1"), steps.DeleteKey("x"))
    assert after.digest == before.digest


def test_digest_includes_last_change_of_log():
    """Replicas that disagree on a log's last change would answer conditions differently."""
    one = state_after(*BASE, steps.Invalidate("a", ()), steps.SetKey("k", b"v"))
    other = state_after(*BASE, steps.SetKey("k", b"v"), steps.SetKey("k", b"v"))
    other.apply(steps.Step([], [steps.SetKey("k", b"v")]), 14)
    one.apply(steps.Step([], [steps.SetKey("k", b"v")]), 14)
    assert one.keys.get("k") == other.keys.get("k")
    assert one.items == other.items
    assert one.digest != other.digest
