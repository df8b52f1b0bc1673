"""raft/log_view.py against a plain list, and its refusals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import LogGap
from nyala.common.ids import NO_OP, OpId
from nyala.raft.log_view import ENTRY_OVERHEAD_BYTES, LogView
from nyala.raft.messages import Entry, EntryKind


def entry(term, index, stamp=None, payload=b""):
    return Entry(OpId(term, index), stamp or 10 * index, EntryKind.OPERATION, payload)


actions = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 2)),
        st.tuples(st.just("cut"), st.integers(0, 5)),
        st.tuples(st.just("apply"), st.integers(0, 5)),
    ),
    max_size=40,
)


@given(actions, st.integers(0, 3))
def test_log_view_terms_and_searches_equal_reference_list(steps, base_index):
    base = OpId(1, base_index) if base_index else NO_OP
    log = LogView(base, 10 * base_index, [], cache_bytes=2 * ENTRY_OVERHEAD_BYTES)
    model = [base]
    for action, number in steps:
        if action == "append":
            new = entry(max(model[-1].term, 1) + number, model[-1].index + 1)
            log.append(new)
            model.append(new.id)
        elif action == "cut":
            first = max(log.committed + 1, log.last.index - number + 1)
            if first <= log.last.index:
                log.truncate(first)
                model = [op for op in model if op.index < first]
        else:
            log.take_unwritten()
            log.note_durable(log.last)
            log.commit(min(log.last.index, log.committed + number))
            if applied := log.take_applicable():
                log.note_applied(applied[-1].id.index)
        assert log.last == model[-1]
        assert log.last_stamp == 10 * log.last.index
        for op in model:
            assert log.op_id(op.index) == op
        assert not log.holds(OpId(99, log.last.index))
        for index in range(base_index, log.last.index + 2):
            for term in range(model[-1].term + 2):
                found = [op for op in model if op.index <= index and op.term <= term]
                assert log.at_or_below(index, term) == (found[-1] if found else base)


def test_cached_entries_are_bounded_by_applied_index_and_limit():
    log = LogView(NO_OP, 0, [], cache_bytes=1000)
    for index in range(1, 101):
        log.append(entry(1, index, payload=b"x" * 36))
    log.take_unwritten()
    log.note_durable(log.last)
    log.commit(80)
    assert log.first_cached == 1, "entries are not evicted before they are applied"
    log.take_applicable()
    log.note_applied(80)
    assert log.first_cached == 81, "unapplied entries stay in memory regardless of the limit"
    assert log.slice(80, 100) is None
    assert [e.id.index for e in log.slice(99, 1 << 20) or ()] == [99, 100]
    assert log.slice(101, 1 << 20) == ()
    assert log.term(3) == 1
    log.commit(100)
    log.take_applicable()
    log.note_applied(100)
    assert log.first_cached == 91


def test_slice_has_at_least_one_entry_within_limit():
    log = LogView(NO_OP, 0, [entry(1, i, payload=b"x" * 36) for i in range(1, 10)], 1000)
    assert len(log.slice(1, 1) or ()) == 1
    assert len(log.slice(1, 200) or ()) == 2
    assert len(log.slice(1, 299) or ()) == 2


@pytest.mark.parametrize(
    "bad",
    [
        [entry(1, 1), entry(1, 3)],
        [entry(2, 1), entry(1, 2)],
        [entry(1, 1, 50), entry(1, 2, 50)],
        [entry(1, 2)],
    ],
    ids=["gap", "terms fall", "stamps fall", "begins late"],
)
def test_damaged_log_is_refused(bad):
    with pytest.raises(LogGap, match="damaged"):
        LogView(NO_OP, 0, bad, 1000)


def test_committed_entries_are_never_truncated():
    log = LogView(NO_OP, 0, [entry(1, 1), entry(1, 2)], 1000)
    log.commit(1)
    with pytest.raises(AssertionError):
        log.truncate(1)
