"""A key takes effect once: jobs, epochs of streams, and queries that replace others. Rule I."""

import asyncio

import pytest

from nyala.common.errors import InvalidArgument
from nyala.master.transactions import keys
from nyala.master.transactions.keys import ANYONE, KeyState, KeyUse
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import transactions_pb2 as txn
from tests.unit.master.support.scripted_tablets import Term, with_term

Kind = txn.TxnOutcome
JOB = txn.TxnKey(name="job")
FREE, TAKEN, REFUSED = KeyState.FREE, KeyState.TAKEN, KeyState.REFUSED


def epoch(number, query="q", replaces="", table=""):
    return txn.TxnKey(name="s", query=query, epoch=number, replaces=replaces, table=table)


@pytest.mark.parametrize(
    ("key", "taken", "state"),
    [
        (JOB, None, FREE),
        (JOB, JOB, TAKEN),
        (JOB, epoch(0), REFUSED),
        (epoch(0), None, FREE),
        (epoch(1), None, REFUSED),
        (epoch(0), epoch(0), TAKEN),
        (epoch(3), epoch(4), TAKEN),
        (epoch(5), epoch(4), FREE),
        (epoch(6), epoch(4), REFUSED),
        (epoch(0), JOB, REFUSED),
        (epoch(0, "r"), epoch(4), REFUSED),
        (epoch(0, "r", "q"), epoch(4), FREE),
        (epoch(1, "r", "q"), epoch(4), REFUSED),
        (epoch(0, "r", "p"), epoch(4), REFUSED),
        (epoch(0, "q", "p"), epoch(4, "r"), REFUSED),
        (epoch(0, "q", "p"), None, REFUSED),
        (epoch(0, table="A"), None, FREE),
        (epoch(5, table="A"), epoch(4, table="A"), FREE),
        (epoch(4, table="A"), epoch(4, table="A"), TAKEN),
        (epoch(5, table="B"), epoch(4, table="A"), REFUSED),
        (epoch(4, table="B"), epoch(4, table="A"), REFUSED),
        (epoch(3, table="B"), epoch(4, table="A"), REFUSED),
        (epoch(5, table="B"), epoch(4), FREE),
        (epoch(4, table="B"), epoch(4), TAKEN),
        (epoch(5), epoch(4, table="A"), FREE),
        (epoch(4), epoch(4, table="A"), TAKEN),
        (epoch(0, "r", "q", "B"), epoch(4, table="A"), FREE),
    ],
)
def test_state_of_a_key(key, taken, state):
    record = None if taken is None else cat.KeyRecord(key=taken)
    found = keys.verdict(KeyUse(key, ANYONE, b"t"), record)
    assert found.state is state
    assert bool(found.reason) == (state is REFUSED)


@pytest.mark.parametrize(
    "key",
    [
        txn.TxnKey(),
        txn.TxnKey(name="x" * 257),
        txn.TxnKey(name="a\nb"),
        txn.TxnKey(name="a", epoch=1),
        txn.TxnKey(name="a", table="t"),
        txn.TxnKey(name="a", query="q", table="t" * 257),
        txn.TxnKey(name="a", query="q" * 257),
    ],
)
def test_malformed_key_is_refused(key):
    with pytest.raises(InvalidArgument):
        keys.check(key)


def test_second_transaction_with_a_key_is_answered_with_the_time_of_the_first():
    async def work(term):
        first = await term.commit(1, JOB)
        second = await term.commit(2, JOB)
        assert (second.kind, second.at) == (Kind.TAKEN, first.at)
        assert second.winner == (1).to_bytes(16, "big")
        assert (await term.commit(1, JOB)).kind == Kind.COMMITTED
        assert len(term.rows.batches) == 1

    with_term(work)


def test_two_transactions_with_a_key_at_once_have_one_decision():
    async def work(term):
        both = await asyncio.gather(term.commit(1, JOB), term.commit(2, JOB))
        assert sorted(o.kind for o in both) == [Kind.COMMITTED, Kind.TAKEN]
        assert both[0].at == both[1].at
        assert len(term.catalog.decisions.rows) == 1

    with_term(work)


def test_taken_key_is_answered_only_once_the_winner_is_resolved():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Resolve"}
        assert (await term.commit(1, JOB, timeout_ms=300)).kind == Kind.NONE
        term.memory.drop("another leader")
        successor, held = Term(term.loop, term.rows, term.catalog, 2), asyncio.Event()
        for tablet in successor.tablets.values():
            tablet.prepared[(1).to_bytes(16, "big")] = (1, 1, 1)
            tablet.held["Resolve"] = held
        successor.transactions.start()
        assert (await successor.commit(2, JOB, timeout_ms=300)).kind == Kind.NONE
        held.set()
        assert (await successor.commit(2, JOB)).kind == Kind.TAKEN
        successor.memory.drop("end")

    with_term(work)


def test_epochs_of_a_stream_take_effect_once_and_in_order():
    async def work(term):
        assert (await term.commit(1, epoch(0))).kind == Kind.COMMITTED
        denied = await term.commit(2, epoch(2))
        assert (denied.kind, denied.reason) == (
            Kind.DENIED, "the last epoch of 's' is 0, and this one is 2"
        )  # fmt: skip
        assert (await term.commit(3, epoch(1))).kind == Kind.COMMITTED
        assert (await term.commit(4, epoch(0))).kind == Kind.TAKEN
        assert (await term.commit(5, epoch(0, "r"))).kind == Kind.DENIED
        assert (await term.commit(6, epoch(0, "r", "q"))).kind == Kind.COMMITTED
        late = await term.commit(7, epoch(0, "q", ""))
        assert late.kind == Kind.DENIED

    with_term(work)


def test_epoch_for_another_table_is_denied_whether_it_is_the_next_one_or_done():
    async def work(term):
        assert (await term.commit(1, epoch(0, table="A"))).kind == Kind.COMMITTED
        for number, transaction in ((1, 2), (0, 3)):
            denied = await term.commit(transaction, epoch(number, table="B"))
            assert (denied.kind, "dropped and created again" in denied.reason) == (
                Kind.DENIED,
                True,
            )
        assert (await term.commit(4, epoch(0, "r", "q", "B"))).kind == Kind.COMMITTED
        assert (await term.commit(5, epoch(1, "r", table="B"))).kind == Kind.COMMITTED

    with_term(work)


def test_epoch_without_a_table_leaves_the_table_of_its_query():
    async def work(term):
        for number, key in enumerate((epoch(0, table="A"), epoch(1))):
            assert (await term.commit(number, key)).kind == Kind.COMMITTED
        denied = await term.commit(2, epoch(2, table="B"))
        assert (denied.kind, "with the id A" in denied.reason) == (Kind.DENIED, True)
        assert (await term.commit(3, epoch(2, table="A"))).kind == Kind.COMMITTED
        assert (await term.commit(4, epoch(0, "r", "q"))).kind == Kind.COMMITTED
        assert (await term.commit(5, epoch(1, "r", table="B"))).kind == Kind.COMMITTED

    with_term(work)


def test_late_epoch_of_a_stream_that_the_catalog_does_not_know_is_refused_with_its_remedy():
    found = keys.verdict(KeyUse(epoch(7), ANYONE, b"t"), None)
    assert (
        "when a catalog is rebuilt (nyala master unsafe_rebuild): write the stream" in found.reason
    )


@pytest.mark.parametrize("rows", [True, False])
def test_epoch_that_was_denied_is_not_committed_by_a_late_copy_of_its_request(rows):
    """The key is free by then: the stage has to be gone, or the denial recorded."""

    async def work(term):
        await term.commit(1, epoch(0))
        asked = term.request(3, epoch(2))
        if not rows:
            del asked.participants[:]
        denied = await term.coordinator.commit(asked, ANYONE)
        assert (denied.kind, "epoch" in denied.reason) == (Kind.DENIED, True)
        assert (await term.commit(2, epoch(1))).kind == Kind.COMMITTED
        assert (await term.coordinator.commit(asked, ANYONE)).kind == Kind.DENIED
        assert (await term.commit(4, epoch(2))).kind == Kind.COMMITTED, "another transaction has it"

    with_term(work)


def test_refused_key_is_not_denied_while_no_tablet_has_dropped_its_stage():
    async def work(term):
        for tablet in term.tablets.values():
            tablet.silent = {"Drop"}
        undecided = await term.commit(3, epoch(2), timeout_ms=700)
        assert undecided.kind == Kind.NONE
        for tablet in term.tablets.values():
            tablet.silent = set()
        assert (await term.commit(3, epoch(2), timeout_ms=10_000)).kind == Kind.DENIED

    with_term(work)


def test_transaction_without_rows_takes_its_key():
    async def work(term):
        request = term.request(1, JOB)
        del request.participants[:]
        assert (await term.coordinator.commit(request, ANYONE)).kind == Kind.COMMITTED
        assert (await term.commit(2, JOB)).kind == Kind.TAKEN
        assert "Prepare" not in term.methods_sent()

    with_term(work)
