"""Applying: effects, answers and saved state do not depend on the grouping of entries."""

import asyncio
from collections import deque
from contextlib import suppress
from itertools import accumulate, pairwise
from tempfile import TemporaryDirectory
from typing import ClassVar

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


class Lanes:
    """Lanes that run inline."""

    async def run(self, _lane, work, *args):
        return work(*args)

    run_brief = run


class Replica:
    """An applier, and its results.

    Attributes:
        answers: to each entry.
        groups: numbers of entries applied together.
    """

    def __init__(
        self,
        directory="/nowhere",
        group_ops=7,
        group_bytes=300,
        lanes=None,
        machine=AddingMachine,
    ):
        self.machine = machine(SystemFiles(), directory)
        self.answers: list[Answer | None] = []
        self.groups: list[int] = []
        self.applier = Applier(
            lanes or Lanes(),  # type: ignore[arg-type]
            self.machine,
            ClientSessions.load(self.machine.flush_point.extra),
            group_ops=group_ops,
            group_bytes=group_bytes,
            deliver=self._deliver,
            may_apply=lambda: True,
        )

    def _deliver(self, group, answers):
        self.groups.append(len(group))
        self.answers += answers
        if group[-1].id == self._last:
            self._feed()

    def apply(self, *fed):
        """Feed entries, each list when those before it are applied; return the answers to all so far."""
        self._fed = deque(fed)

        async def main():
            self._running = asyncio.ensure_future(self.applier.run())
            self._feed()
            with suppress(asyncio.CancelledError):
                await self._running

        asyncio.run(main())
        return self.answers

    def _feed(self):
        if not self._fed:
            self._running.cancel()
            return
        entries = self._fed.popleft()
        self._last = entries[-1].id
        self.applier.enqueue(entries, awaited=True)

    def flush(self):
        """Make applied entries durable, as a replica does."""
        build = self.applier.prepare_flush()
        if build is not None:
            build()()


@given(steps, st.lists(st.integers(1, 12), min_size=40, max_size=40))
def test_grouped_apply_equals_single_apply(drawn, sizes):
    log = log_of(drawn)
    single, grouped = Replica(), Replica(group_ops=12, group_bytes=1 << 20)
    ends = [0, *(e for e in accumulate(sizes) if e < len(log)), len(log)]
    answers = grouped.apply(*(log[a:b] for a, b in pairwise(ends)))
    assert answers == single.apply(*([entry] for entry in log))
    assert single.groups == [1] * len(log)
    assert grouped.groups == [b - a for a, b in pairwise(ends)]
    assert grouped.machine.sums == single.machine.sums
    assert grouped.applier.sessions.dump() == single.applier.sessions.dump()


@given(steps, st.integers(0, 40))
def test_replay_from_cut_equals_first_run(drawn, at):
    log = log_of(drawn)
    whole = Replica()
    whole.apply(log)
    with TemporaryDirectory() as directory:
        if log[:at]:
            first = Replica(directory)
            first.apply(log[:at])
            first.flush()
        again = Replica(directory)
    if log[at:]:
        again.apply(log[at:])
    assert again.machine.sums == whole.machine.sums
    assert again.applier.sessions.dump() == whole.applier.sessions.dump()


def test_duplicates_applied_together_get_result_of_the_first():
    log = log_of([(EntryKind.OPERATION, CLIENTS[0], 1, 0, b"k 5", 1)] * 3)
    first, second, third = Replica().apply(log)
    assert first is not None
    assert second is not None
    assert (first.kind, second.kind) == (AnswerKind.DONE, AnswerKind.DUPLICATE)
    assert second == third
    assert (second.stamp, second.result) == (first.stamp, b"5")


def test_groups_are_bounded_in_operations_and_bytes():
    made = Replica()
    payload = b"k 1" + b" " * 60
    log = log_of([(EntryKind.OPERATION, CLIENTS[0], n, 0, payload, 1) for n in range(20)])
    made.apply(log)
    assert sum(made.groups) == 20
    assert 1 < max(made.groups) <= 300 // len(log[0].payload)
    large = Replica()
    payload = b"k 1" + b" " * 9999
    large.apply(log_of([(EntryKind.OPERATION, CLIENTS[0], n, 0, payload, 1) for n in range(2)]))
    assert large.groups == [1, 1], "at least one operation is applied regardless of its size"
    many = Replica()
    many.apply(log_of([(EntryKind.NOOP, CLIENTS[0], 0, 0, b"", 1)] * 20))
    assert many.groups == [7, 7, 6]


def test_entry_out_of_order_stops_replica():
    log = log_of([(EntryKind.NOOP, CLIENTS[0], 0, 0, b"", 1)] * 3)
    early = Entry(OpId(1, 2), 1, EntryKind.NOOP)
    for wrong, why in ((log[2], "after"), (early, "stamp")):
        made = Replica()
        made.apply(log[:1])
        with pytest.raises(AssertionError, match=why):
            made.apply([wrong])
        assert made.applier.applied == log[0].id


def test_operation_of_newer_version_stops_replica_and_keeps_its_data():
    made = Replica()
    newer = Entry(OpId(1, 1), 1, EntryKind.OPERATION, b"\xff" * 60)
    with pytest.raises(BadVersion, match="version 255"):
        made.apply([newer])
    assert made.machine.sums == {}


def test_replicas_that_apply_at_other_times_keep_the_same_results():
    """Results expire by the timestamps of entries: answers to retries are independent of the apply time."""
    for later, kind in ((9 * SECOND, AnswerKind.DUPLICATE), (11 * SECOND, AnswerKind.EXPIRED)):
        drawn = [(EntryKind.OPERATION, CLIENTS[0], 1, 0, b"k 5", s) for s in (SECOND, later)]
        early, late = Replica(), Replica()
        answers = [early.apply(log_of(drawn)), late.apply(*([e] for e in log_of(drawn)))]
        assert [a[1] and a[1].kind for a in answers] == [kind, kind]
        assert early.applier.sessions.dump() == late.applier.sessions.dump()


class SteppingMachine(AddingMachine):
    """A machine in which an operation takes three steps."""

    prepared: ClassVar[dict[bytes, object]] = {}

    def apply_in_steps(self, operations):
        yield
        results = self.apply(operations)
        yield
        return results


class CountingLanes(Lanes):
    """Lanes that count calls, and try to fix a flush point before each."""

    def __init__(self):
        self.brief = self.others = 0
        self.builds = []
        self.applier: Applier | None = None

    async def run(self, _lane, work, *args):
        self.others += 1
        assert self.applier is not None
        self.builds.append(self.applier.prepare_flush())
        return work(*args)

    async def run_brief(self, _lane, work, *args):
        self.brief += 1
        return work(*args)


def test_steps_of_an_operation_are_jobs_of_the_lane_and_no_flush_point_lies_between_them():
    lanes = CountingLanes()
    replica = Replica(lanes=lanes, machine=SteppingMachine)
    lanes.applier = replica.applier
    log = log_of([(EntryKind.OPERATION, CLIENTS[0], n, 1, b"k 1", SECOND) for n in (1, 2)])
    answers = replica.apply(log[:1], log[1:])
    assert [a.kind for a in answers] == [AnswerKind.DONE] * 2
    assert (lanes.brief, lanes.others) == (2, 4), "only the first steps may run on the loop"
    assert lanes.builds == [None] * 4
    assert replica.applier.prepare_flush() is not None
