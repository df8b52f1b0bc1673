"""Pages of a journal's state: limits, ends, what follows a page."""

import pytest

from nyala.common.errors import Unavailable
from nyala.journal import changes, reads, steps
from nyala.journal.keys import KeyValue
from nyala.journal.reads import (
    DeletedKeyEvent,
    InvalidatedEntries,
    check_least,
    content_page,
    key_page,
    log_page,
    logs_page,
    tail_of_keys,
    tail_of_log,
)
from nyala.journal.state import JournalState
from nyala.journal.unflushed import Unflushed


@pytest.fixture
def state() -> JournalState:
    return JournalState(Unflushed(), limit_bytes=1 << 40)


def applied(state: JournalState, *made: steps.Change) -> list[int]:
    result = state.apply(steps.Step([], made), state.last + 1)
    assert isinstance(result, steps.Done)
    return list(result.ids)


def test_entry_above_page_size_is_a_page_of_its_own(state, monkeypatch):
    monkeypatch.setattr(reads, "PAGE_BYTES", 10)
    first, second, third = applied(state, *[steps.Append("a", b"x" * 20)] * 3)
    page = log_page(state, "a", 0, 0, 0, 0)
    assert ([i for i, _ in page.entries], page.more) == ([first], True)
    page = log_page(state, "a", 0, first, 0, 0)
    assert ([i for i, _ in page.entries], page.more) == ([second], True)
    page = log_page(state, "a", 0, second, 0, 0)
    assert ([i for i, _ in page.entries], page.more) == ([third], False)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_pages_have_limit_and_say_whether_there_is_more(state, size):
    applied(state, *[steps.Append(name, b"1") for name in ("a", "a", "a", "b", "c")])
    applied(state, *[steps.SetKey(f"k{n}", b"") for n in range(3)])
    entries = log_page(state, "a", 0, 0, 0, size)
    assert (len(entries.entries), entries.more) == (min(size, 3), size < 3)
    keys = key_page(state, "k", "", size)
    assert (len(keys.keys), keys.more) == (min(size, 3), size < 3)
    logs, more = logs_page(state, "", size)
    assert (len(logs), more) == (min(size, 3), size < 3)


def test_page_of_keys_ends_by_its_bytes(state, monkeypatch):
    monkeypatch.setattr(reads, "PAGE_BYTES", 100)
    applied(state, *[steps.SetKey(f"k{n}", bytes(80)) for n in range(3)])
    page = key_page(state, "", "", 0)
    assert ([k.key for k in page.keys], page.more) == (["k0"], True)
    page = key_page(state, "", "k1", 0)
    assert ([k.key for k in page.keys], page.more) == (["k2"], False)


def test_page_of_entries_ends_at_through(state):
    first, second, _ = applied(state, *[steps.Append("a", b"1")] * 3)
    page = log_page(state, "a", 0, 0, second, 0)
    assert ([i for i, _ in page.entries], page.more) == ([first, second], False)


def test_reader_at_oldest_known_change_is_not_rebased(state, monkeypatch):
    monkeypatch.setattr(changes, "KEPT", 4)
    ids = [applied(state, steps.Append("a", b"1"), steps.SetKey("k", b""))[0] for _ in range(20)]
    floor = state.recent.floor
    assert ids[0] < floor < ids[-1]
    for tailed in (tail_of_log(state, "a", 0, floor), tail_of_keys(state, "", floor)):
        assert not tailed.rebased
        assert tailed.events
    for tailed in (tail_of_log(state, "a", 0, floor - 1), tail_of_keys(state, "", floor - 1)):
        assert (tailed.rebased, tailed.events, tailed.through) == (True, [], state.last)


def test_page_of_tail_ends_between_changes_of_one_id_never(state, monkeypatch):
    monkeypatch.setattr(reads, "PAGE_ITEMS", 1)
    (first,) = applied(state, steps.Append("a", b"1"))
    (second,) = applied(state, steps.Append("a", b"2", (first,)))
    (third,) = applied(state, steps.Append("a", b"3"))
    page = tail_of_log(state, "a", 0, 0)
    assert page.events == [(second, b"2"), InvalidatedEntries(second, (first,))]
    assert (page.through, page.more) == (third - 1, True)
    rest = tail_of_log(state, "a", 0, page.through)
    assert (rest.events, rest.more) == ([(third, b"3")], False)


def test_tail_leaves_out_changes_without_effect_on_its_reader(state):
    (first,) = applied(state, steps.Append("a", b"1"))
    applied(state, steps.Invalidate("a", (99,)), steps.Append("b", b"other"))
    assert tail_of_log(state, "a", 0, first).events == []
    assert tail_of_log(state, "a", 0, first).through == state.last


def test_watch_tells_each_key_once_by_its_newest_change(state):
    applied(state, steps.SetKey("k1", b"old"), steps.SetKey("k2", b""), steps.SetKey("other", b""))
    (gone,) = applied(state, steps.DeleteKey("k2"))
    (version,) = applied(state, steps.SetKey("k1", b"new"))
    page = tail_of_keys(state, "k", 0)
    assert page.events == [DeletedKeyEvent(gone, "k2"), KeyValue("k1", version, b"new")]
    applied(state, steps.SetKey("k2", b"again"))
    assert [type(event) for event in tail_of_keys(state, "k", 0).events] == [KeyValue, KeyValue]


def test_read_of_what_is_applied_just_now_is_answered(state):
    applied(state, steps.SetKey("k", b""))
    check_least(state, state.last)
    with pytest.raises(Unavailable):
        check_least(state, state.last + 1)


def test_reader_with_all_of_a_quiet_log_is_not_rebased(state, monkeypatch):
    monkeypatch.setattr(changes, "KEPT", 4)
    *_, last = applied(state, steps.Append("a", b"1"), steps.Append("a", b"2"))
    for _ in range(20):
        applied(state, steps.SetKey("k", b""))
    assert last < state.recent.floor
    page = tail_of_log(state, "a", 0, last)
    assert (page.rebased, page.events, page.through) == (False, [], state.last)
    assert tail_of_log(state, "a", 0, last - 1).rebased


def test_append_that_invalidates_nothing_is_one_recent_change(state):
    applied(state, steps.Append("a", b"1"), steps.Append("a", b"2", (99,)))
    assert len(state.recent) == 2


def pages_of_content(state, limit=0):
    """Return the ids of each log's entries, read from page to page, and the number of pages."""
    found: dict[str, list[int]] = {}
    pages, name, after = 0, "", 0
    while True:
        page = content_page(state, name, after, limit)
        pages += 1
        for log, entries in page.logs:
            assert entries or log.name not in found, "a log without entries is on one page"
            found.setdefault(log.name, []).extend(i for i, _ in entries)
        if not page.more:
            return found, pages
        last, entries = page.logs[-1]
        name, after = last.name, entries[-1][0] if entries else last.last


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 7])
def test_content_of_many_logs_is_read_in_pages_and_each_item_once(state, limit):
    expected = {}
    for number in range(5):
        ids = applied(state, *[steps.Append(f"log-{number}", b"1")] * (number + 1))
        if number == 2:
            applied(state, steps.Invalidate("log-2", tuple(ids)))
            ids = []
        expected[f"log-{number}"] = ids
    found, pages = pages_of_content(state, limit)
    assert found == expected
    assert pages == (-(-13 // limit) if limit else 1)


def test_page_of_content_ends_by_its_bytes(state, monkeypatch):
    monkeypatch.setattr(reads, "PAGE_BYTES", 10)
    first, second = applied(state, *[steps.Append("a", b"x" * 20)] * 2)
    (third,) = applied(state, steps.Append("b", b"x"))
    assert pages_of_content(state) == ({"a": [first, second], "b": [third]}, 3)
