"""Ends of transactions: aborts, statuses, dropped tables, removal of decisions and keys. Rules A, D, F, N."""

import asyncio

import pytest

from nyala.common.errors import NotLeader
from nyala.common.options import Options
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.transactions.keys import ANYONE
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn
from tests.unit.master.support.ddl_operations import with_table
from tests.unit.master.support.scripted_tablets import OPTIONS, Term, with_term

Kind, Answer = txn.TxnOutcome, txn.TxnStatusAnswer
T1 = (1).to_bytes(16, "big")


def status(term, number=1):
    asked = txn.TxnPrepared(
        transaction=number.to_bytes(16, "big"), tablet_id=next(iter(term.tablets))
    )
    return term.coordinator.status(asked)


def test_abort_denies_once_a_tablet_has_dropped_its_stage():
    async def work(term):
        ended = await term.abort()
        assert ended.kind == Kind.DENIED
        assert all(T1 in t.dropped for t in term.tablets.values())
        assert term.rows.confirmed == 1
        assert (await term.commit()).kind == Kind.DENIED

    with_term(work)


def test_abort_is_not_answered_while_no_tablet_has_dropped():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Drop"}
        assert (await term.abort(timeout_ms=500)).kind == Kind.NONE

    with_term(work)


def test_abort_is_not_denied_by_a_leader_that_is_not_confirmed():
    async def work(term):
        term.rows.refusal = NotLeader("another one leads")
        with pytest.raises(NotLeader):
            await term.abort()

    with_term(work)


def test_abort_of_a_committed_transaction_returns_its_time():
    async def work(term):
        done = await term.commit()
        late = await term.abort()
        assert (late.kind, late.at) == (Kind.COMMITTED, done.at)

    with_term(work)


def test_abort_while_the_row_is_proposed_waits_for_its_outcome():
    async def work(term):
        term.rows.hold = asyncio.Event()
        waiting = term.env.tasks.spawn(term.commit(), "commit")
        await term.env.tasks.sleep_ms(200)
        ending = term.env.tasks.spawn(term.abort(timeout_ms=5_000), "abort")
        await term.env.tasks.sleep_ms(200)
        assert not ending.done()
        term.rows.hold.set()
        assert (await waiting).kind == (await ending).kind == Kind.COMMITTED

    with_term(work)


def test_abort_during_prepare_keeps_the_attempt_from_deciding():
    async def work(term):
        held = asyncio.Event()
        for tablet in term.tablets.values():
            tablet.held["Prepare"] = held
        waiting = term.env.tasks.spawn(term.commit(timeout_ms=400), "commit")
        await term.env.tasks.sleep_ms(100)
        ended = await term.abort()
        held.set()
        assert (await waiting).kind in (Kind.NONE, Kind.DENIED)
        await term.env.tasks.sleep_ms(1_000)
        assert not term.rows.batches
        assert ended.kind == Kind.DENIED

    with_term(work)


def test_transaction_aborted_while_its_decision_waits_for_locks_is_not_committed():
    async def work(term):
        async with term.memory.locks.hold(Scope(tablets=tuple(term.tablets))):
            waiting = term.env.tasks.spawn(term.commit(timeout_ms=300), "commit")
            await term.env.tasks.sleep_ms(200)
            assert term.transactions.attempts.under_way
            assert (await term.abort()).kind == Kind.DENIED
        assert (await waiting).kind in (Kind.NONE, Kind.DENIED)
        await term.env.tasks.sleep_ms(1_000)
        assert not term.rows.batches

    with_term(work)


def test_status_unprepares_only_what_is_neither_decided_nor_tried():
    async def work(term):
        first, second = status(term), status(term)
        assert first.kind == Answer.UNPREPARE
        assert second.bound.number > first.bound.number
        done = await term.commit()
        answer = status(term)
        assert (answer.kind, answer.at) == (Answer.RESOLVE, done.at)

    with_term(work)


def test_status_of_a_dropped_tablet_is_its_deletion():
    async def work(term):
        term.drop_table()
        assert status(term).kind == Answer.DELETED

    with_term(work)


def test_commit_into_a_dropped_table_is_denied():
    async def work(term):
        term.drop_table()
        denied = await term.commit()
        assert denied.kind == Kind.DENIED
        assert "was dropped" in denied.reason

    with_term(work)


def test_table_dropped_between_prepare_and_row_leaves_no_row():
    async def work(term):
        async with term.memory.locks.hold(Scope(tablets=tuple(term.tablets))):
            waiting = term.env.tasks.spawn(term.commit(), "commit")
            await term.env.tasks.sleep_ms(200)
            term.drop_table()
        assert (await waiting).kind == Kind.DENIED
        assert not term.catalog.decisions.rows

    with_term(work)


def test_dropped_participant_counts_as_resolved_after_the_row():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Resolve"}
        waiting = term.env.tasks.spawn(term.commit(timeout_ms=20_000), "commit")
        await term.env.tasks.sleep_ms(300)
        assert T1 in term.catalog.decisions.rows
        term.drop_table()
        assert (await waiting).kind == Kind.COMMITTED

    with_term(work)


async def upkeep(term):
    await term.transactions.upkeep.remove_decisions()
    return term.catalog.decisions


def test_decision_is_removed_after_its_time_and_marks_say_so():
    async def work(term):
        done = await term.commit()
        decisions = await upkeep(term)
        assert (decisions.marks.resolved >= done.at, decisions.marks.removed) == (True, 0)
        await term.env.tasks.sleep_ms(9_000)
        assert T1 in (await upkeep(term)).rows
        await term.env.tasks.sleep_ms(2_000)
        late = await term.commit(2)
        decisions = await upkeep(term)
        assert list(decisions.rows) == [(2).to_bytes(16, "big")]
        assert decisions.marks.removed == done.at
        assert done.at < decisions.marks.settled < late.at
        assert ("decision", T1.hex()) not in term.rows.rows

    with_term(work)


def test_participant_that_lost_its_prepare_counts_as_resolved_and_is_named():
    """Else the decision would stay for ever, and with it the mark that lets tablets forget others."""

    async def work(term):
        kept, lost = term.tablets
        term.tablets[lost].leader, term.tablets[lost].lost = "b", True
        done = await term.commit()
        assert done.kind == Kind.COMMITTED
        assert term.tablets[kept].ended[T1] == done.at
        assert term.transactions.resolver.lost(T1) == [lost]
        await term.env.tasks.sleep_ms(11_000)
        marks = (await upkeep(term)).marks
        assert marks.settled >= done.at
        assert not term.transactions.resolver.lost(T1)

    with_term(work)


def test_decision_that_is_not_resolved_stays():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Resolve"}
        assert (await term.commit(timeout_ms=200)).kind == Kind.NONE
        await term.env.tasks.sleep_ms(20_000)
        decisions = await upkeep(term)
        assert T1 in decisions.rows
        assert decisions.marks.resolved < decisions.rows[T1].at

    with_term(work)


def test_settled_stays_below_a_row_that_is_proposed():
    async def work(term):
        await term.commit(1)
        await term.env.tasks.sleep_ms(11_000)
        hold = term.rows.hold = asyncio.Event()
        waiting = term.env.tasks.spawn(term.commit(2), "commit")
        await term.env.tasks.sleep_ms(300)
        removing = term.env.tasks.spawn(upkeep(term), "upkeep")
        await term.env.tasks.sleep_ms(300)
        hold.set()
        late = await waiting
        decisions = await removing
        assert decisions.marks.settled < late.at
        assert decisions.marks.resolved < late.at

    with_term(work)


def test_outcome_of_a_removed_decision_is_unknown_not_denied():
    async def work(term):
        since = term.clock.now()
        await term.commit(1, since=since)
        await term.env.tasks.sleep_ms(11_000)
        await upkeep(term)
        assert (await term.commit(1, since=since)).kind == Kind.UNKNOWN
        assert (await term.abort(1, since=since)).kind == Kind.UNKNOWN
        for tablet in term.tablets.values():
            tablet.refuses = True
        assert (await term.commit(2)).kind == Kind.DENIED, "it began after the removal"

    with_term(work)


def test_key_answers_after_its_decision_was_removed():
    async def work(term):
        key = txn.TxnKey(name="job")
        since = term.clock.now()
        done = await term.commit(1, key, since=since)
        await term.env.tasks.sleep_ms(11_000)
        await upkeep(term)
        again = await term.commit(1, key, since=since)
        assert (again.kind, again.at) == (Kind.COMMITTED, done.at)

    with_term(work)


def test_keys_of_jobs_are_removed_after_their_days_and_those_of_streams_are_kept():
    async def work(term):
        job, stream = txn.TxnKey(name="job"), txn.TxnKey(name="s", query="q")
        since = term.clock.now()
        done = await term.commit(1, job, since=since)
        await term.commit(2, stream)
        term.catalog.decisions.publish(CatalogPlan(removed=(T1, (2).to_bytes(16, "big"))))
        await term.transactions.upkeep.remove_keys()
        assert ("txn_key", "job") in term.rows.rows
        term.clock.merge(done.at + (2 * 86_400_000_000 << 12))
        await term.transactions.upkeep.remove_keys()
        assert ("txn_key", "job") not in term.rows.rows
        assert ("txn_key", "s") in term.rows.rows
        marks = cat.DecisionMarks(
            removed=done.at, keys_removed=term.catalog.decisions.marks.keys_removed
        )
        assert marks.keys_removed == done.at
        term.catalog.decisions.publish(CatalogPlan(marks=marks))
        assert (await term.commit(3, job, since=since)).kind == Kind.UNKNOWN

    options = Options(client_result_ttl_s=10, txn_prepare_timeout_ms=500, job_ledger_days=1)
    assert options.client_result_ttl_s == OPTIONS.client_result_ttl_s
    with_term(work, options=options)


async def abort_as_operator(term, tablets):
    """Abort as `nyala txn abort`, which knows the tablets that have a stage now, and no parts."""
    named = [txn.TxnParticipant(tablet_id=t) for t in tablets]
    request = txn.TxnAbortRequest(transaction=T1, timeout_ms=2_000, participants=named)
    return await term.coordinator.abort(request)


def commit_of(term, tablets, key=None):
    """Return a commit of some of the tablets."""
    asked = term.request(key=key)
    for participant in [p for p in asked.participants if p.tablet_id not in tablets]:
        asked.participants.remove(participant)
    return asked


def test_abort_of_an_operator_says_up_to_when_the_transaction_may_have_been_committed():
    """A failed task has left a stage, which its process keeps alive, of a transaction that was committed."""

    async def work(term):
        first, *others = term.tablets
        asked = commit_of(term, others)
        done = await term.coordinator.commit(asked, ANYONE)
        assert done.kind == Kind.COMMITTED
        await term.env.tasks.sleep_ms(11_000)
        assert not (await upkeep(term)).rows
        ended = await abort_as_operator(term, [first])
        assert ended.kind == Kind.UNKNOWN
        assert ended.at >= done.at
        late = await term.coordinator.commit(commit_of(term, [first]), ANYONE)
        assert (late.kind, late.reason) == (Kind.DENIED, "it was aborted"), "it is final"

    with_term(work)


@pytest.mark.parametrize("silent", [False, True])
def test_abort_of_an_operator_refuses_rows_that_are_staged_later_in_other_tablets(silent):
    """The tablets named may be those of a failed attempt of a task; the next leader refuses too."""

    async def work(term):
        failed, later = term.tablets
        if silent:
            term.tablets[failed].silent = {"Drop"}
        assert (await abort_as_operator(term, [failed])).kind == Kind.DENIED
        denied = await term.coordinator.commit(commit_of(term, [later]), ANYONE)
        assert (denied.kind, denied.reason) == (Kind.DENIED, "it was aborted")
        successor = Term(term.loop, term.rows, loaded(term), 2)
        assert (
            await successor.coordinator.commit(commit_of(term, [later]), ANYONE)
        ).kind == Kind.DENIED
        assert (await successor.commit(2)).kind == Kind.COMMITTED

    with_term(work)


def test_aborted_transaction_whose_key_was_taken_since_is_answered_with_the_winner():
    async def work(term):
        job = txn.TxnKey(name="job")
        assert (await abort_as_operator(term, list(term.tablets))).kind == Kind.DENIED
        winner = await term.commit(2, job)
        found = await term.coordinator.commit(term.request(key=job), ANYONE)
        assert (found.kind, found.at) == (Kind.TAKEN, winner.at)

    with_term(work)


def loaded(term):
    """Return the catalog of another leader, with the decisions that were replicated."""
    catalog = with_table()
    for (kind, _), row in term.rows.rows.items():
        assert kind == "decision"
        catalog.decisions.load(cat.DecisionRecord.FromString(row.body))
    return catalog


def test_abort_of_an_operator_keeps_an_attempt_from_deciding_while_it_is_recorded():
    async def work(term):
        held = asyncio.Event()
        for tablet in term.tablets.values():
            tablet.held["Prepare"] = held
        waiting = term.env.tasks.spawn(term.commit(timeout_ms=3_000), "commit")
        await term.env.tasks.sleep_ms(100)
        term.rows.hold = asyncio.Event()
        ending = term.env.tasks.spawn(abort_as_operator(term, term.tablets), "abort")
        await term.env.tasks.sleep_ms(100)
        held.set()
        await term.env.tasks.sleep_ms(1_000)
        assert not term.transactions.attempts.under_way
        term.rows.hold.set()
        assert (await waiting).kind == (await ending).kind == Kind.DENIED
        assert not term.catalog.decisions.rows

    with_term(work)


def test_abort_of_an_operator_is_remembered_as_long_as_keys_of_jobs():
    async def work(term):
        await abort_as_operator(term, term.tablets)
        since = term.clock.now()
        await term.env.tasks.sleep_ms(60_000)
        assert T1 in (await upkeep(term)).aborted
        term.clock.merge(term.clock.now() + (2 * 86_400_000_000 << 12))
        decisions = await upkeep(term)
        assert (decisions.aborted, list(term.rows.rows)) == ({}, [("decision_marks", "marks")])
        assert (await term.commit(since=decisions.marks.removed)).kind == Kind.UNKNOWN
        assert since > decisions.marks.removed

    options = Options(client_result_ttl_s=10, txn_prepare_timeout_ms=500, job_ledger_days=1)
    with_term(work, options=options)
