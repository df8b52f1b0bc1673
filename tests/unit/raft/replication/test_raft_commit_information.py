"""A member's commit index never decreases: not by a late message, nor by a new leader."""

from nyala.common.ids import OpId, ServerUuid
from nyala.raft.messages import AppendEntries, Entry, EntryKind
from tests.unit.raft.support.raft_harness import Cluster

ONE, TWO, THREE = map(ServerUuid, "123")


def heartbeat(sender: ServerUuid, term: int, commit: int) -> AppendEntries:
    return AppendEntries(
        sender=sender, to=ONE, term=term, hlc=1, previous=OpId(term, 9), commit=commit
    )


def test_older_commit_information_does_not_replace_newer():
    node = Cluster((ONE, TWO, THREE))[ONE]
    node.step(heartbeat(TWO, 2, 9), 1)
    assert node.status().known_commit == 9
    node.step(heartbeat(TWO, 2, 4), 1)  # it was delayed
    assert node.status().known_commit == 9
    assert node.core.incomplete
    node.step(heartbeat(THREE, 3, 4), 1)  # a new leader has a lower commit index at first
    assert node.status().known_commit == 9
    assert not node.core.complete(OpId(2, 8))
    assert node.core.complete(OpId(2, 9))
    assert node.core.complete(OpId(3, 5)), "a leader of a later term has all committed entries"


def test_closed_time_is_used_after_its_entries_are_applied_not_committed():
    """A read at such a time would omit rows."""
    node = Cluster((ONE, TWO, THREE))[ONE]
    entries = tuple(
        Entry(OpId(2, n), 10 * n, EntryKind.OPERATION if n > 1 else EntryKind.NOOP, b"x")
        for n in (1, 2, 3)
    )
    message = AppendEntries(
        sender=TWO, to=ONE, term=2, hlc=99, entries=entries, commit=3, closed=50
    )
    node.step(message, 99)
    ready = node.ready()
    node.durable(ready.point)
    ready = node.ready()
    assert [e.id.index for e in ready.apply] == [1, 2, 3]
    assert node.commit_index == 3
    assert node.closed == 0
    node.applied(2)
    assert node.closed == 0
    node.applied(3)
    assert node.closed == 50
