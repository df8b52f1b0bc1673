"""Applying: however entries are grouped, the same takes effect, the same is answered, the same is saved."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nyala.common.errors import BadVersion
from nyala.common.hybrid_time import from_micros
from nyala.common.ids import OpId
from nyala.env.files import SystemFiles
from nyala.raft.messages import Entry, EntryKind
from nyala.replica.member.applier import Answer, AnswerKind, Applier
from nyala.replica.member.client_sessions import ClientSessions
from nyala.replica.member.session_header import wrap
from tests.unit.replica.support.replica_support import AddingMachine

SECOND = from_micros(1_000_000)
CLIENTS = [b"a" * 16, b"b" * 16]

steps = st.lists(
    st.tuples(
        st.sampled_from([EntryKind.OPERATION] * 5 + [EntryKind.NOOP]),
        st.sampled_from(CLIENTS),
        st.integers(0, 8),  # sequence
        st.integers(0, 8),  # first outstanding, cut to the sequence
        st.sampled_from([b"k 1", b"k 1", b"k 10"]),
        st.integers(1, 4 * SECOND),
    ),
    min_size=1,
    max_size=40,
)


def log_of(drawn):
    entries, stamp = [], 0
    for index, (kind, client, sequence, first, payload, later) in enumerate(drawn, 1):
        stamp += later
        wrapped = wrap(payload, client, sequence, min(first, sequence), 10)
        entries.append(
            Entry(OpId(1, index), stamp, kind, wrapped if kind is EntryKind.OPERATION else b"")
        )
    return entries


def applier(directory="/nowhere"):
    machine = AddingMachine(SystemFiles(), directory)
    return Applier(
        None,  # type: ignore[arg-type]
        machine,
        ClientSessions.load(machine.cut.extra),
        group_ops=7,
        group_bytes=300,
        deliver=lambda *_: None,
        may_apply=lambda: True,
    )


@given(steps, st.lists(st.integers(1, 12), min_size=40, max_size=40))
def test_grouping_changes_nothing(drawn, sizes):
    log = log_of(drawn)
    single, grouped = applier(), applier()
    one_by_one = [single._apply([entry])[0] for entry in log]
    answers: list[Answer | None] = []
    for size in sizes:
        group, rest = log[len(answers) : len(answers) + size], len(answers) < len(log)
        if rest:
            answers += grouped._apply(group)
    assert answers == one_by_one
    assert grouped.machine.sums == single.machine.sums
    assert grouped.sessions.dump() == single.sessions.dump()


@given(steps, st.integers(0, 40))
def test_a_replay_from_the_cut_ends_where_the_first_run_did(drawn, at):
    log = log_of(drawn)
    whole, first = applier(), applier()
    for entry in log:
        whole._apply([entry])
    for entry in log[:at]:
        first._apply([entry])
    again = applier()
    again.sessions = ClientSessions.load(first.sessions.dump())
    again.machine.sums.update(first.machine.sums)
    again._position = first._position
    for entry in log[at:]:
        again._apply([entry])
    assert again.machine.sums == whole.machine.sums
    assert again.sessions.dump() == whole.sessions.dump()


def test_a_duplicate_in_the_same_group_gets_the_result_of_the_first():
    log = log_of([(EntryKind.OPERATION, CLIENTS[0], 1, 0, b"k 5", 1)] * 3)
    first, second, third = applier()._apply(log)
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == (AnswerKind.DONE, AnswerKind.DUPLICATE)
    assert second == third
    assert (second.stamp, second.result) == (first.stamp, b"5")


def test_groups_are_bounded_in_operations_and_bytes():
    made = applier()
    payload = b"k 1" + b" " * 60
    log = log_of([(EntryKind.OPERATION, CLIENTS[0], n, 0, payload, 1) for n in range(20)])
    made._queue.extend(log)
    sizes = []
    while made._queue:
        sizes.append(len(made._take()))
    assert sum(sizes) == 20
    assert max(sizes) * len(log[0].payload) <= 300
    made._queue.extend(log_of([(EntryKind.OPERATION, CLIENTS[0], 1, 0, b"x" * 9999, 1)] * 2))
    assert len(made._take()) == 1, "one at least, whatever its size"
    made._queue.clear()
    made._queue.extend(log_of([(EntryKind.NOOP, CLIENTS[0], 0, 0, b"", 1)] * 20))
    assert len(made._take()) == 7


def test_an_entry_out_of_order_stops_the_replica():
    log = log_of([(EntryKind.NOOP, CLIENTS[0], 0, 0, b"", 1)] * 3)
    made = applier()
    made._apply(log[:1])
    with pytest.raises(AssertionError, match="after"):
        made._apply(log[2:])
    early = Entry(OpId(1, 2), 1, EntryKind.NOOP)
    with pytest.raises(AssertionError, match="stamp"):
        made._apply([early])


def test_an_operation_of_a_newer_version_stops_the_replica_with_its_data_kept():
    made = applier()
    newer = Entry(OpId(1, 1), 1, EntryKind.OPERATION, b"\xff" * 60)
    with pytest.raises(BadVersion, match="version 255"):
        made._apply([newer])
    assert made.machine.sums == {}


def test_replicas_that_apply_at_other_times_keep_the_same_results():
    """Results expire by the stamps of entries: what a retry gets does not hang on when it is applied."""
    for later, kind in ((9 * SECOND, AnswerKind.DUPLICATE), (11 * SECOND, AnswerKind.EXPIRED)):
        drawn = [(EntryKind.OPERATION, CLIENTS[0], 1, 0, b"k 5", s) for s in (SECOND, later)]
        early, late = applier(), applier()
        answers = [early._apply(log_of(drawn)), [late._apply([e])[0] for e in log_of(drawn)]]
        assert [a[1] and a[1].kind for a in answers] == [kind, kind]
        assert early.sessions.dump() == late.sessions.dump()
