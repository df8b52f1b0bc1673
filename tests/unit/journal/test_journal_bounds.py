"""Bounds of a journal's answers, memory and work for any steps."""

import gc
import random
import sys
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from nyala.journal import changes, reads, steps
from nyala.journal import entries as entries_module
from nyala.journal.changes import EntriesInvalidated, KeyChanged, RecentChanges
from nyala.journal.entries import CHUNK_BYTES, Entries
from nyala.journal.keys import KeyValue
from nyala.journal.reads import tail_of_keys, tail_of_log
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed
from nyala.tserver.journals import messages
from tests.sim.world.files import SimDisk
from tests.unit.journal.journal_disk import JournalOnDisk

PAGE_BYTES = 4096


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> JournalState:
    monkeypatch.setattr(reads, "PAGE_BYTES", PAGE_BYTES)
    return JournalState(Unflushed(), limit_bytes=1 << 40)


def applied(state: JournalState, *made: steps.Change) -> list[int]:
    result = state.apply(steps.Step([], made), state.last + 1)
    assert isinstance(result, steps.Done)
    return list(result.ids)


def test_answer_to_watch_of_large_values_is_bounded(state):
    for number in range(40):
        applied(state, steps.SetKey(f"k{number}", bytes(1000)))
    versions, after = [], 0
    while after < state.last:
        page = tail_of_keys(state, "", after)
        assert messages.tail_to_proto(page).ByteSize() < 2 * PAGE_BYTES
        versions += [event.version for event in page.events if isinstance(event, KeyValue)]
        after = page.through
    assert versions == list(range(1, 41))


def test_answer_to_watch_of_deleted_long_keys_is_bounded(state):
    names = [f"{number:02}" + 1000 * "k" for number in range(40)]
    for name in names:
        applied(state, steps.SetKey(name, b""))
        applied(state, steps.DeleteKey(name))
    returned: list[str] = []
    after = 0
    while after < state.last:
        page = tail_of_keys(state, "", after)
        assert messages.tail_to_proto(page).ByteSize() < 2 * PAGE_BYTES
        returned += [event.key for event in page.events if isinstance(event, reads.DeletedKeyEvent)]
        after = page.through
    assert returned == names


def test_answer_to_tail_of_large_invalidations_is_bounded(state):
    state.last = 1 << 62  # as those of the hybrid clock
    ids = [applied(state, steps.Append("a", b""))[0] for _ in range(2_000)]
    for at in range(0, len(ids), 100):
        applied(state, steps.Invalidate("a", ids[at : at + 100]))
    returned: list[int] = []
    after = ids[-1]
    while after < state.last:
        page = tail_of_log(state, "a", ids[0], after)
        assert messages.tail_to_proto(page).ByteSize() < 2 * PAGE_BYTES
        for event in page.events:
            assert isinstance(event, reads.InvalidatedEntries)
            returned += event.ids
        after = page.through
    assert returned == ids


def test_memory_follows_valid_entries_of_newest_chunk():
    entries = Entries()
    for number in range(1, 5):
        entries.append(number, bytes(CHUNK_BYTES // 4))
    for number in range(1, 5):
        entries.invalidate(number)
        assert entries.resident_bytes <= 2 * entries.data_bytes + 4096
    entries.append(5, b"next")
    assert list(entries.read(0, 9)) == [(5, b"next")]


@pytest.mark.parametrize("data", [b"", b"0123456789"])
@pytest.mark.parametrize("kept_every", [1_000, 20_000])
def test_memory_follows_valid_entries_among_many_small_ones(kept_every, data):
    entries = Entries()
    for number in range(1, 30_001):
        entries.append(number, data)
    for number in range(1, 30_001):
        if number % kept_every:
            entries.invalidate(number)
    assert entries.resident_bytes < 64 * len(entries) + 4096
    kept = list(range(kept_every, 30_001, kept_every))
    assert [i for i, _ in entries.read(0, 30_000)] == kept


def lines_run(work: Callable[[], object]) -> int:
    """Return the number of lines that a call runs, those of comprehensions once for each item."""
    count, before = 0, sys.gettrace()

    def trace(frame: object, event: str, argument: object) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("data", [b"", b"x"])
def test_cost_of_invalidation_does_not_grow_with_entries(monkeypatch, data):
    monkeypatch.setattr(entries_module, "CHUNK_ROWS", 6_000)
    entries = Entries()
    for number in range(1, 10_001):
        entries.append(number, data)

    def change() -> None:
        for number in range(1, 51):
            assert entries.invalidate(number) == data
            entries.append(10_000 + number, bytes(1_000))
            entries.invalidate(10_000 + number)

    assert lines_run(change) < 100 * 500
    assert [i for i, _ in entries.read(0, 20_000)] == list(range(51, 10_001))


def test_recent_changes_are_forgotten_by_their_memory(monkeypatch):
    monkeypatch.setattr(changes, "KEPT_BYTES", 10_000)
    recent = RecentChanges()
    for number in range(1, 201):
        recent.add(EntriesInvalidated(2 * number, 1, tuple(range(10))))
        recent.add(KeyChanged(2 * number + 1, 400 * "k"))
        kept = list(recent.after(recent.floor))
        assert recent.size_bytes <= 2 * 10_000
        assert len(kept) >= min(2 * number, 10_000 // 496 - 1)
        assert [c.id for c in kept] == list(range(max(2, recent.floor + 1), 2 * number + 2))
    tracemalloc.start()
    try:
        for number in range(402, 2_402):
            recent.add(KeyChanged(number, f"{number}" + 400 * "k"))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()


def measured(fill: Callable[[JournalState], None]) -> tuple[int, int]:
    """Return the memory of what was filled in, as it is and as it is counted."""
    state = JournalState(NoObserver(), limit_bytes=1 << 40)
    gc.collect()
    tracemalloc.start()
    try:
        fill(state)
        gc.collect()
        return tracemalloc.get_traced_memory()[0], state.resident_bytes
    finally:
        tracemalloc.stop()


def test_entries_of_deleted_logs_are_freed_while_later_files_are_read():
    """A start needs memory for what is valid, not for all that the files have."""
    on_disk = JournalOnDisk(SimDisk(random.Random(1)))
    size, count = 1 << 20, 9
    for number in range(count):
        on_disk.apply(steps.Append(f"log {number}", bytes(size)))
        on_disk.flush()
        on_disk.apply(steps.DeleteLog(f"log {number}"))
    on_disk.flush()
    gc.collect()
    tracemalloc.start()
    try:
        on_disk.reopen()
        assert tracemalloc.get_traced_memory()[1] < size * count / 2
    finally:
        tracemalloc.stop()


class NoObserver:
    """Receives changes, and keeps none."""

    def nothing(self, *_: object) -> None:
        """Do nothing."""

    appended = invalidated = dropped = key_changed = nothing


@pytest.mark.full
def test_entry_takes_few_bytes_beside_its_data_in_memory():
    count = 20_000

    def fill(state: JournalState) -> None:
        for _ in range(count):
            applied(state, steps.Append("a", bytes(100)))

    used, counted = measured(fill)
    assert counted / count - 100 <= 30
    assert used / count - 100 <= 40


@pytest.mark.full
def test_few_entries_left_of_many_chunks_take_few_bytes(monkeypatch):
    monkeypatch.setattr(entries_module, "CHUNK_ROWS", 256)
    tracemalloc.start()
    try:
        entries = Entries()
        for number in range(1, 30_001):
            entries.append(number, b"")
        for number in range(1, 30_001):
            if number % 256:
                entries.invalidate(number)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 100 * len(entries) + 4096
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(5))
def test_entries_are_those_of_a_dict_after_any_changes(monkeypatch, seed):
    monkeypatch.setattr(entries_module, "CHUNK_ROWS", 16)
    monkeypatch.setattr(entries_module, "CHUNK_BYTES", 200)
    draw = random.Random(seed)
    entries, model = Entries(), dict[int, bytes]()
    newest = 0
    for _ in range(2_000):
        newest += draw.randrange(1, 3)
        model[newest] = draw.randbytes(draw.choice((0, 3, 30, 300)))
        entries.append(newest, model[newest])
        for _ in range(draw.choice((0, 0, 0, 8))):
            wanted = draw.randrange(newest + 2)
            assert entries.size_of(wanted) == (len(model[wanted]) if wanted in model else None)
            assert entries.invalidate(wanted) == model.pop(wanted, None)
            assert entries.get(wanted) is None
        after, through = sorted((draw.randrange(newest + 2), draw.randrange(newest + 2)))
        assert dict(entries.read(after, through)) == {
            i: data for i, data in model.items() if after < i <= through
        }
    assert list(entries.read(0, newest)) == list(model.items())
    assert (len(entries), entries.data_bytes) == (len(model), sum(map(len, model.values())))
    for entry_id in list(model):
        assert entries.invalidate(entry_id) == model[entry_id]
    assert entries.resident_bytes == 0


def logs(state: JournalState) -> None:
    for number in range(2_000):
        applied(state, steps.Append(f"log{number}", b""))


def keys(state: JournalState) -> None:
    for number in range(2_000):
        applied(state, steps.SetKey(f"key{number}", b"v" * 20))


def invalidations(state: JournalState) -> None:
    ids = [applied(state, steps.Append("a", b"x" * 100))[0] for _ in range(4_000)]
    for at in range(0, 4_000, 50):
        applied(state, steps.Invalidate("a", tuple(int(str(i)) for i in ids[at : at + 50])))


@pytest.mark.parametrize("fill", [logs, keys, invalidations])
def test_counted_memory_is_about_that_in_use(fill):
    used, counted = measured(fill)
    assert 0.6 * used < counted < 1.7 * used


def test_counted_memory_is_the_same_after_any_changes(monkeypatch):
    monkeypatch.setattr(entries_module, "CHUNK_BYTES", 1_000)
    state = JournalState(NoObserver(), limit_bytes=1 << 40)
    draw = random.Random(5)
    ids: dict[str, list[int]] = {"a": [], "b": []}
    for _ in range(3_000):
        log = draw.choice("ab")
        gone = (
            draw.sample(ids[log], draw.randrange(len(ids[log]) + 1)) if draw.random() < 0.1 else []
        )
        if draw.random() < 0.01:
            applied(state, steps.DeleteLog(log))
            ids[log] = []
            continue
        ids[log] = sorted({*ids[log]} - {*gone})
        ids[log] += applied(state, steps.Append(log, bytes(draw.randrange(300)), gone))
    for log in list(state.logs):
        found = state.logs[log].entries
        assert found.data_bytes + 12 * len(found) <= found.resident_bytes
        assert found.resident_bytes <= 2 * found.data_bytes + 106 * len(found) + 4096
        applied(state, steps.DeleteLog(log))
    assert state.resident_bytes == state.recent.size_bytes


@pytest.mark.parametrize(("rows", "size_bytes"), [(10, 1 << 20), (1 << 14, 5_000)])
def test_one_change_moves_entries_of_one_chunk_at_most(monkeypatch, rows, size_bytes):
    monkeypatch.setattr(entries_module, "CHUNK_ROWS", rows)
    monkeypatch.setattr(entries_module, "CHUNK_BYTES", size_bytes)
    entries = Entries()
    for number in range(4_000):
        entries.append(number, bytes(10 if number % 2 else 1_000))
    most = max(lines_run(partial(entries.invalidate, number)) for number in range(0, 4_000, 2))
    assert most < 1_500
    assert len(entries) == 2_000
