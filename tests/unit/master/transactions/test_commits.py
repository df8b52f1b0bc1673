"""The coordinator decides once all tablets are prepared, at a time above all prepares; rules C, A and K."""

import asyncio

import pytest

from nyala.common.errors import Forbidden, NotLeader, OutcomeUnknown, Unavailable
from nyala.common.hybrid_time import from_micros
from nyala.common.options import Options
from nyala.master.catalog.plan import Scope
from nyala.master.transactions import resolver
from nyala.master.transactions.keys import ANYONE
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.proto import transactions_pb2 as txn
from tests.unit.master.support.scripted_tablets import Term, with_term

Kind = txn.TxnOutcome
T1 = (1).to_bytes(16, "big")


def test_commit_prepares_all_tablets_writes_row_above_prepares_and_resolves_before_answer():
    async def work(term):
        done = await term.commit()
        assert done.kind == Kind.COMMITTED
        row = term.catalog.decisions.rows[T1]
        assert row.at == done.at
        assert sorted(row.tablet_ids) == sorted(term.tablets)
        assert [t.ended[T1] for t in term.tablets.values()] == [done.at] * 2
        assert term.methods_sent() == ["Check", "Prepare", "row", "Resolve"], "one request a server"
        del term.sent[:]
        await term.commit(2)
        assert term.methods_sent() == ["Prepare", "row", "Resolve"], (
            "one server leads all, as is known"
        )

    with_term(work)


def test_commit_time_is_above_prepare_times_that_are_ahead_of_masters_clock():
    async def work(term):
        first, second = term.tablets.values()
        first.ahead, second.ahead = from_micros(5_000_000), from_micros(2_000_000)
        before = term.clock.now()
        done = await term.commit()
        assert done.at > before + from_micros(5_000_000)

    with_term(work)


def test_no_row_is_written_while_one_tablet_is_not_prepared_and_retry_takes_a_higher_attempt():
    async def work(term):
        first, second = term.tablets.values()
        second.leader = "b"
        second.silent = {"Prepare"}
        undecided = await term.commit(timeout_ms=700)
        assert undecided.kind == Kind.NONE
        assert "row" not in term.methods_sent()
        await term.env.tasks.sleep_ms(50)
        undone = [r.bound.number for r in term.requests if isinstance(r, txn.TxnUnprepareRequest)]
        tried = [r.attempt.number for r in term.requests if isinstance(r, txn.TxnPrepareRequest)]
        assert undone
        assert min(undone) > min(tried)
        second.silent = set()
        done = await term.commit(timeout_ms=5_000)
        assert done.kind == Kind.COMMITTED
        assert first.prepared[T1][2] > min(undone)
        assert term.catalog.decisions.rows[T1].attempt.number == first.prepared[T1][2]
        assert first.prepared[T1] == second.prepared[T1]

    with_term(work)


def test_attempt_that_meets_a_busy_tablet_ends_at_once_and_is_tried_again():
    """Its other tablets are unprepared, so that two tablets cannot wait for each other."""

    async def work(term):
        assert (await term.commit(2)).kind == Kind.COMMITTED, "one server leads both"
        first, busy = term.tablets.values()
        now_us = term.env.clock.monotonic_us
        began_us = now_us()
        busy.busy_until_us = began_us + 300_000
        waiting = term.env.tasks.spawn(term.commit(), "commit")
        await term.env.tasks.sleep_ms(150)
        assert "Unprepare" in term.methods_sent()
        assert T1 not in first.prepared
        assert (await waiting).kind == Kind.COMMITTED
        assert now_us() - began_us < 350_000, "the pauses do not grow while a tablet is busy"

    with_term(work)


def test_check_of_several_servers_finds_one_without_leader_before_anything_is_prepared():
    async def work(term):
        _, second = term.tablets.values()
        second.leader = "b"
        assert (await term.commit(1)).kind == Kind.COMMITTED
        second.silent = {"Check"}
        del term.sent[:]
        assert (await term.commit(2, timeout_ms=2_500)).kind == Kind.NONE
        assert set(term.methods_sent()) == {"Check"}

    with_term(work)


def test_refused_prepare_denies_after_a_round_of_the_catalog_with_reasons():
    async def work(term):
        next(iter(term.tablets.values())).refuses = True
        denied = await term.commit()
        assert denied.kind == Kind.DENIED
        assert denied.errors
        assert term.rows.confirmed == 1
        assert not term.rows.batches

    with_term(work)


def test_denial_is_not_answered_by_a_leader_that_is_not_confirmed():
    async def work(term):
        next(iter(term.tablets.values())).refuses = True
        term.rows.refusal = NotLeader("another one leads")
        with pytest.raises(NotLeader):
            await term.commit()

    with_term(work)


@pytest.mark.row("W11")
def test_commit_is_answered_only_once_every_tablet_has_resolved():
    async def work(term):
        _, second = term.tablets.values()
        second.leader = "b"
        held = second.held["Resolve"] = asyncio.Event()
        waiting = term.env.tasks.spawn(term.commit(timeout_ms=60_000), "commit")
        await term.env.tasks.sleep_ms(1_000)
        assert T1 in term.catalog.decisions.rows
        assert not waiting.done()
        again = await term.commit(timeout_ms=200)
        assert again.kind == Kind.NONE, "another request waits too"
        held.set()
        assert (await waiting).kind == Kind.COMMITTED

    with_term(work)


def test_row_is_committed_before_any_resolve_is_sent():
    async def work(term):
        term.rows.hold = asyncio.Event()
        waiting = term.env.tasks.spawn(term.commit(), "commit")
        await term.env.tasks.sleep_ms(1_000)
        assert term.methods_sent()[-1] == "row"
        attempted = term.transactions.attempts.under_way[T1]
        assert attempted.decided_at
        answer = term.coordinator.status(
            txn.TxnPrepared(transaction=T1, tablet_id=attempted.tablets[0])
        )
        assert answer.kind == txn.TxnStatusAnswer.WAIT, "the row is neither committed nor refused"
        term.rows.hold.set()
        assert (await waiting).kind == Kind.COMMITTED
        assert term.methods_sent()[-1] == "Resolve"

    with_term(work)


def test_decision_whose_outcome_is_unknown_ends_the_term_and_unprepares_nothing():
    async def work(term):
        term.rows.failure = OutcomeUnknown("leadership was lost")
        with pytest.raises(Unavailable, match="stopped leading"):
            await term.commit()
        assert term.memory.dropped
        await term.env.tasks.sleep_ms(500)
        assert "Unprepare" not in term.methods_sent()

    with_term(work)


def test_decision_that_was_refused_before_it_was_proposed_is_tried_again():
    async def work(term):
        term.rows.failure = Unavailable("no majority")
        undecided = await term.commit(timeout_ms=400)
        assert undecided.kind == Kind.NONE
        term.rows.failure = None
        done = await term.commit()
        assert done.kind == Kind.COMMITTED
        assert len(term.rows.batches) == 1

    with_term(work)


def test_attempt_ends_if_commit_time_is_too_far_above_prepares():
    async def work(term):
        lock = term.memory.locks
        tablet = next(iter(term.tablets))
        async with lock.hold(Scope(tablets=(tablet,))):
            waiting = term.env.tasks.spawn(term.commit(timeout_ms=3_000), "commit")
            await term.env.tasks.sleep_ms(1_500)
        assert (await waiting).kind == Kind.COMMITTED
        tried = [r.attempt.number for r in term.requests if isinstance(r, txn.TxnPrepareRequest)]
        assert len(tried) == 2, "the first attempt was given up, with a row that was too late"

    options = Options(client_result_ttl_s=10, txn_prepare_timeout_ms=500, clock_max_ahead_ms=1_000)
    with_term(work, options=options)


def test_leader_that_stops_before_the_resolves_acknowledges_nothing():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Resolve"}
        waiting = term.env.tasks.spawn(refused(term), "commit")
        await term.env.tasks.sleep_ms(1_000)
        assert T1 in term.catalog.decisions.rows
        term.memory.drop("another leader")
        await waiting
        row = term.catalog.decisions.rows[T1]
        with pytest.raises(Unavailable):
            await term.transactions.resolver.resolved(row)

    async def refused(term):
        with pytest.raises(Unavailable, match="stopped leading"):
            await term.commit(timeout_ms=60_000)

    with_term(work)


def test_commit_that_waits_for_a_tablet_is_answered_at_once_when_the_term_ends():
    """Else the client would wait for its time-out, and the task for ever if a tablet never answered."""

    async def work(term):
        for tablet in term.tablets.values():
            tablet.held["Prepare"] = asyncio.Event()
        waiting = term.env.tasks.spawn(refused(term), "commit")
        await term.env.tasks.sleep_ms(300)
        assert term.coordinator.running == [T1]
        term.memory.drop("another leader")
        await term.env.tasks.sleep_ms(10)
        assert waiting.done()
        assert not term.coordinator.running

    async def refused(term):
        with pytest.raises(Unavailable, match="stopped leading"):
            await term.commit(timeout_ms=60_000)

    with_term(work)


def test_silent_server_delays_no_commit_that_does_not_touch_it(monkeypatch):
    """Decisions that a silent server has to resolve take its turns only."""
    monkeypatch.setattr(resolver, "CONCURRENT", 4)

    async def work(term):
        answers, silent = term.tablets
        term.tablets[silent].leader = "b"
        term.tablets[silent].silent = {"Resolve"}
        for number in range(100, 150):
            asked = commit_of(term, number, [silent], 50)
            term.env.tasks.spawn(term.coordinator.commit(asked, ANYONE), "commit")
        await term.env.tasks.sleep_ms(10_000)
        assert len(term.catalog.decisions.rows) == 50
        for number in range(1, 6):
            began_us = term.env.clock.monotonic_us()
            done = await term.coordinator.commit(commit_of(term, number, [answers], 2_000), ANYONE)
            assert done.kind == Kind.COMMITTED
            assert term.env.clock.monotonic_us() - began_us < 100_000
        asked = commit_of(term, 6, [answers, silent], 4_000)
        assert (await term.coordinator.commit(asked, ANYONE)).kind == Kind.NONE
        left = term.transactions.resolver.left(asked.transaction)
        assert left == [silent], "the other participant did not wait for it"

    with_term(work)


def commit_of(term, number, tablets, timeout_ms):
    """Return a commit of some of the tablets."""
    asked = term.request(number, timeout_ms=timeout_ms)
    for participant in [p for p in asked.participants if p.tablet_id not in tablets]:
        asked.participants.remove(participant)
    return asked


def test_requests_follow_the_leader_that_a_server_names():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.leader = "c"
        assert (await term.commit()).kind == Kind.COMMITTED
        assert {server for name, server, _ in term.sent if name == "Resolve"} == {"c"}

    with_term(work)


def test_new_leader_resolves_the_decisions_above_the_mark():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Resolve"}
        undone = await term.commit(timeout_ms=300)
        assert undone.kind == Kind.NONE
        term.memory.drop("another leader")
        successor = Term(term.loop, term.rows, term.catalog, 2)
        for tablet in successor.tablets.values():
            tablet.prepared[T1] = (1, 1, 1)
        successor.transactions.start()
        await successor.env.tasks.sleep_ms(500)
        at = term.catalog.decisions.rows[T1].at
        assert [t.ended.get(T1) for t in successor.tablets.values()] == [at] * 2
        assert (await successor.commit()).at == at
        successor.memory.drop("end")

    with_term(work)


def test_transactions_are_refused_while_a_live_server_is_of_an_older_release():
    async def work(term):
        term.beat("b", protocol=1)
        with pytest.raises(Forbidden, match=r"tserver b:1 \(release 0\.1\)"):
            await term.commit()
        term.beat("b")
        assert (await term.commit()).kind == Kind.COMMITTED

    with_term(work)


def test_transactions_are_refused_while_another_master_is_of_an_older_release():
    async def work(term):
        with pytest.raises(Forbidden, match="master m1:7050"):
            await term.commit()

    old = pb.ServerInfoResponse(role="master", address="m1:7050", version="0.1", protocol_version=1)
    with_term(work, masters=[old])
