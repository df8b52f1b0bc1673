"""Changes for the next flush, digests and definition of a journal, beside its content."""

import random

import pytest

from nyala.common.ids import CommittedOperation, OpId
from nyala.journal import journal, steps
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed
from tests.sim.world.files import SimDisk
from tests.unit.journal.journal_disk import JournalOnDisk


@pytest.fixture
def on_disk() -> JournalOnDisk:
    return JournalOnDisk(SimDisk(random.Random(1)))


def test_log_that_was_created_and_deleted_since_the_cut_leaves_nothing(on_disk):
    on_disk.apply(steps.Append("a", b"1"), steps.DeleteLog("a"))
    assert on_disk.flush(), "the cut is new"
    assert on_disk.journal.data_bytes == 0


def test_unflushed_memory_follows_what_a_flush_would_write(on_disk):
    for number in range(20):
        on_disk.apply(steps.SetKey("k", bytes(1000)))
        on_disk.apply(steps.Append("a", bytes(1000), (100 + 20 * number,)))
    assert 2_000 < on_disk.journal.unflushed_bytes() < 22_000
    for entry_id, _ in list(on_disk.journal.state.logs["a"].entries.read(0, 1 << 60)):
        on_disk.apply(steps.Invalidate("a", (entry_id,)))
    assert on_disk.journal.unflushed_bytes() < 5_000


def test_changes_after_a_failed_flush_add_their_memory():
    older, newer = Unflushed(), Unflushed()
    state = JournalState(older, limit_bytes=1 << 30)
    state.apply(steps.Step([], [steps.Append("a", bytes(1000))]), 1)
    before = older.size_bytes
    state.observer = newer
    state.apply(steps.Step([], [steps.Append("a", bytes(500)), steps.SetKey("k", bytes(300))]), 2)
    older.absorb(newer)
    assert older.size_bytes >= before + 800


def test_memory_of_changes_is_the_same_whether_a_flush_failed_between_them_or_not():
    changes: list[steps.Change] = [
        steps.Append("a", bytes(100)),
        steps.SetKey("k", bytes(10)),
        steps.Append("b", bytes(20)),
        steps.DeleteLog("a"),
        steps.DeleteKey("k"),
        steps.DeleteLog("b"),
    ]
    whole = JournalState(succeeded := Unflushed(), limit_bytes=1 << 30)
    parts = JournalState(failed := Unflushed(), limit_bytes=1 << 30)
    for number, change in enumerate(changes):
        parts.observer = newer = Unflushed()
        for state in (whole, parts):
            state.apply(steps.Step([], [change]), number + 1)
        failed.absorb(newer)
        assert failed.size_bytes == succeeded.size_bytes, f"after {change}"


def test_digests_of_old_changes_are_forgotten(on_disk):
    kept = journal.KEPT_DIGESTS
    first = on_disk.last_stamp + 10
    for _ in range(kept + 1):
        on_disk.apply(steps.SetKey("k", b""))
    assert on_disk.journal.digest_at(first) is None
    assert on_disk.journal.digest_at(on_disk.last_stamp) is not None


def test_older_definition_is_ignored(on_disk):
    for index, version in ((1, 5), (2, 3), (3, 5)):
        definition = steps.encode_definition(
            steps.Definition(version, f"v{version}{index}", 1000 + index)
        )
        on_disk.journal.apply([CommittedOperation(OpId(1, index), 1000 + index, definition)])
    info = on_disk.journal.info
    assert (info.version, info.name, info.limit_bytes) == (5, "v51", 1001)
    assert on_disk.journal.state.limit_bytes == 1001
