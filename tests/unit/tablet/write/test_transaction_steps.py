"""A large stage is applied in steps: others have their turn between them, and see nothing of it."""

import pytest

from nyala.storage.steps import advance
from nyala.tablet.files import transaction_ops
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.files.transaction_ops import (
    PrepareOp,
    ResolveOp,
    TransactionOutcome,
    decode_result,
)
from nyala.tablet.write import apply_transactions
from tests.unit.tablet.support.tablet_support import Driver
from tests.unit.tablet.support.transaction_support import FIRST, REFUSE_S, T1, Transactions


@pytest.fixture
def txns(driver, monkeypatch):
    monkeypatch.setattr(apply_transactions, "FIRST_BYTES", 0)
    monkeypatch.setattr(apply_transactions, "PIECE_BYTES", 0)
    driver.write(RowOp.UPSERT, [{"k": 9, "a": 9, "s": "t"}])
    driver.flush()
    driver.write(RowOp.DELETE, [{"k": 9}], ["k"])
    driver.flush()
    found = Transactions(driver)
    for key in range(1, 6):
        found.upsert(T1, key, a=key)
    return found


def run(txns, op, between=lambda: None):
    """Apply an operation in steps; return its result, and the number of steps."""
    entry = txns.driver.entry(transaction_ops.encode(op))
    steps, count = txns.driver.tablet.apply_in_steps([entry]), 1
    while (finished := advance(steps)) is None:
        between()
        count += 1
    return decode_result(finished.result[0]), count


def test_stage_is_applied_in_pieces_and_readers_see_all_of_it_or_nothing(driver, txns):
    at = txns.prepare(T1).time + 1
    seen = []

    def between():
        build = driver.tablet.prepare_compaction(force=True)
        if build is not None:
            build()()  # it publishes what is there
        seen.append(driver.rows(at - 1))

    result, count = run(txns, ResolveOp(T1, at), between)
    assert (result.outcome, result.time) == (TransactionOutcome.ENDED, at)
    assert count == 1 + 5 + 5, "nothing on the first step; each batch is read, then applied"
    assert seen == [[]] * (count - 1)
    assert [r["k"] for r in driver.rows(at)] == [1, 2, 3, 4, 5]
    assert not driver.tablet.stages.stages


@pytest.mark.parametrize("work", ["compaction", "flush"])
@pytest.mark.parametrize("stop", [1, 2, 5, 6, 8, 10])
def test_maintenance_and_crash_between_the_steps_lose_and_double_nothing(driver, txns, stop, work):
    """The rows end versions on disk, whose ends are above the flush point until the entry is applied."""
    driver.write(RowOp.UPSERT, [{"k": k, "a": 0, "s": "old"} for k in range(1, 4)])
    driver.flush()
    driver.write(RowOp.UPSERT, [{"k": 4, "a": 0, "s": "old"}])
    driver.flush()
    before = driver.rows()
    at = txns.prepare(T1).time + 1
    if work == "compaction":
        driver.flush()
        build = driver.tablet.prepare_compaction(force=True)
    else:
        build = driver.tablet.prepare_flush(driver.flush_point())
    install = build()
    entry = driver.entry(transaction_ops.encode(ResolveOp(T1, at)))
    steps = driver.tablet.apply_in_steps([entry])
    for number in range(stop):
        assert advance(steps) is None
        if number == max(0, stop - 2):
            install()
            driver.compact()  # begins and ends between two steps
    driver.reopen()
    assert driver.rows(at - 1) == before
    assert [(r["k"], r["a"]) for r in driver.rows(at)] == [(k, k) for k in range(1, 6)]
    assert driver.tablet.rows == 5


def test_first_step_does_no_work_on_a_large_stage(driver, txns, monkeypatch):
    monkeypatch.setattr(apply_transactions, "PIECE_BYTES", 1 << 20)
    at = txns.prepare(T1).time + 1
    entry = driver.entry(transaction_ops.encode(ResolveOp(T1, at)))
    steps = driver.tablet.apply_in_steps([entry])
    assert advance(steps) is None
    assert driver.tablet.store.live == 0
    assert driver.tablet.prepared


def test_stage_is_checked_against_a_later_schema_in_pieces(driver, txns):
    for batch in driver.tablet.stages.stages[T1].all_batches:
        batch.checked = driver.schema.version - 1  # as after a change of the schema
    result, count = run(txns, PrepareOp(T1, FIRST, tuple(txns.counts(T1)), 0, REFUSE_S))
    assert result.outcome is TransactionOutcome.DONE
    assert count == 1 + 5


def test_small_stage_is_applied_in_one_step(tmp_path):
    txns = Transactions(Driver(str(tmp_path / "t")))
    for key in range(1, 6):
        txns.upsert(T1, key, a=key)
    at = txns.prepare(T1).time + 1
    _, count = run(txns, ResolveOp(T1, at))
    assert count == 1
