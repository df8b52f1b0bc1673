"""Deletes by condition in a transaction: they select the rows that its commit time finds."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.common.alteration import AddColumn, RenameColumn
from nyala.tablet.files import transaction_ops
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.files.transaction_ops import StageDeleteOp, StageOp, TransactionOutcome
from nyala.tablet.rows import selection
from nyala.tablet.write import built_rows, memrowset
from tests.unit.tablet.support.tablet_support import Driver, numbered
from tests.unit.tablet.support.transaction_support import T1, Transactions


@pytest.fixture
def txns(driver):
    driver.write(RowOp.INSERT, numbered(0, 6))
    return Transactions(driver)


def values(driver, at=None):
    return {r["k"]: r["a"] for r in driver.rows(at)}


def changes(driver, since, *, net):
    found = driver.tablet.view().changes(since, driver.now, net=net)
    return [(r["k"], r["_op"], r["_timestamp"]) for b in found for r in b.to_pylist()]


def test_condition_selects_rows_as_of_the_commit_and_history_stays(driver, txns):
    txns.delete_where(T1, "a >= 3")
    driver.write(RowOp.UPSERT, [{"k": 0, "a": 50, "s": ""}, {"k": 9, "a": 90, "s": ""}])
    driver.write(RowOp.UPDATE, [{"k": 5, "a": 1}], ["k", "a"])
    before, last = driver.now, values(driver)
    at = txns.commit(T1)
    assert values(driver, at - 1) == last == {0: 50, 1: 1, 2: 2, 3: 3, 4: 4, 5: 1, 9: 90}
    assert values(driver, at) == {1: 1, 2: 2, 5: 1}
    assert driver.tablet.rows == 3
    for net in (True, False):
        assert changes(driver, before, net=net) == [(k, "delete", at) for k in (0, 3, 4, 9)]
    driver.flush()
    driver.compact()
    driver.reopen()
    assert values(driver, at - 1) == last
    assert values(driver) == {1: 1, 2: 2, 5: 1}


def test_rows_written_before_it_in_the_transaction_are_selected_and_later_ones_are_not(
    driver, txns
):
    txns.upsert(T1, 4, 7, a=70)
    txns.delete_where(T1, "a > 1")
    txns.upsert(T1, 3, 8, a=80)
    txns.delete_where(T1, "k = 8")
    txns.upsert(T1, 8, a=81)
    before = driver.now
    at = txns.commit(T1)
    expected = {0: 0, 1: 1, 3: 80, 8: 81}

    def check():
        assert values(driver, at) == expected
        assert values(driver, at - 1) == {k: k for k in range(6)}
        kinds = {2: "delete", 3: "update", 4: "delete", 5: "delete", 8: "insert"}
        for net in (True, False):
            assert changes(driver, before, net=net) == [(k, op, at) for k, op in kinds.items()]

    check()
    driver.flush()
    check()
    driver.compact()
    driver.reopen()
    check()
    assert driver.tablet.rows == len(expected)


def test_every_part_of_a_tablet_is_searched(driver, txns):
    driver.flush()
    driver.write(RowOp.INSERT, numbered(10, 16))
    build = driver.tablet.prepare_flush(
        driver.flush_point()
    )  # a frozen memory rowset, and a new one
    driver.write(RowOp.INSERT, numbered(20, 26))
    txns.delete_where(T1, "k in (1, 11, 21)")
    at = txns.commit(T1)
    build()()
    expected = {*range(6), *range(10, 16), *range(20, 26)}
    assert set(values(driver, at - 1)) == expected
    assert set(values(driver, at)) == expected - {1, 11, 21}
    driver.reopen()
    assert set(values(driver, at)) == expected - {1, 11, 21}


def test_stage_of_a_condition_survives_a_flush_and_a_restart(driver, txns):
    txns.delete_where(T1, "a < 2")
    prepared = txns.prepare(T1).time
    driver.flush()
    driver.reopen()
    driver.tablet.verify_stages()
    txns.resolve(T1, prepared + 1)
    assert values(driver) == {2: 2, 3: 3, 4: 4, 5: 5}


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("b = 1", "no column"),
        ("a = 'x'", "a"),
        ("a = ", "character 5"),
    ],
)
def test_condition_that_cannot_be_read_is_refused(driver, txns, where, words):
    refused = txns.delete_where(T1, where)
    assert refused.outcome is TransactionOutcome.REFUSED
    assert [e.code for e in refused.errors] == ["bad_condition"]
    assert words in refused.errors[0].message
    assert not driver.tablet.stages.stages


def test_condition_of_another_schema_version_is_refused_when_staged_and_when_prepared(driver, txns):
    stale = StageDeleteOp(T1, "a", 0, driver.schema.version, "s = 's1'")
    txns.delete_where(T1, "s = 's1'")
    driver.alter(RenameColumn("s", "t"), AddColumn("s", pa.string()))
    prepared = txns.prepare(T1)
    assert prepared.outcome is TransactionOutcome.GONE
    assert [e.code for e in prepared.errors] == ["schema_changed"]
    again = txns.apply(StageDeleteOp(b"3" * 16, "a", 0, stale.schema_version, stale.where))
    assert [e.code for e in again.errors] == ["schema_changed"]
    assert len(values(driver)) == 6


def test_batch_that_is_the_payload_of_another_operation_is_refused(driver, txns):
    for op in (transaction_ops.KeepOp(T1), StageOp(T1, "a", 0, b"\1")):
        refused = txns.apply(StageOp(T1, "a", 0, transaction_ops.encode(op)))
        assert [e.code for e in refused.errors] == ["malformed"]


def test_row_for_which_the_condition_fails_stays_whatever_the_chunks(tmp_path, monkeypatch):
    """No known condition fails on a row; one that did must not end the replicas."""

    def evaluate(tree, get, rows):
        column = get(tree.column_id)
        if pc.any(pc.equal(column, 3)).as_py():
            raise pa.ArrowInvalid("row 3")
        return pc.greater_equal(column, 2)

    monkeypatch.setattr(selection, "evaluate", evaluate)
    for flushed in (False, True):
        driver = Driver(str(tmp_path / str(flushed)))
        txns = Transactions(driver)
        driver.write(RowOp.INSERT, numbered(0, 4))
        if flushed:
            driver.flush()
        driver.write(RowOp.INSERT, numbered(4, 6))
        txns.delete_where(T1, "k >= 2")
        txns.commit(T1)
        assert set(values(driver)) == {0, 1, 3}


def test_rows_of_several_chunks_are_selected(driver, monkeypatch):
    monkeypatch.setattr(memrowset, "CHUNK_ROWS", 8)
    txns = Transactions(driver)
    for first in (0, 8, 16):
        driver.write(RowOp.INSERT, numbered(first, first + 8))
    txns.delete_where(T1, "k = 1 or k = 23")
    txns.commit(T1)
    assert set(values(driver)) == set(range(24)) - {1, 23}


def test_delete_of_all_rows_ends_each_live_version_and_what_is_staged_after_it_is_live(
    driver, txns, monkeypatch
):
    """As by an overwrite: rows on disk, in a flush, in memory and in the transaction, some of them ended."""
    monkeypatch.setattr(built_rows, "LEAST_BATCH_ROWS", 2)
    monkeypatch.setattr(built_rows, "LEAST_ROWS", 2)
    driver.flush()
    driver.write(RowOp.INSERT, numbered(10, 16))
    driver.write(RowOp.DELETE, [{"k": 1}, {"k": 11}], ["k"])
    build = driver.tablet.prepare_flush(driver.flush_point())
    driver.write(RowOp.UPSERT, [{"k": k, "a": -1, "s": ""} for k in (2, 20, 21)])
    driver.write(RowOp.DELETE, [{"k": 21}], ["k"])
    before = values(driver)
    txns.upsert(T1, 3, 30, a=1)
    txns.delete_where(T1, "true")
    txns.upsert(T1, 2, 20, 40, a=2)
    at = txns.commit(T1)
    expected = {2: 2, 20: 2, 40: 2}

    def check():
        assert values(driver, at - 1) == before
        assert values(driver, at) == expected
        kinds = {k: "update" if k in expected else "delete" for k in before} | {40: "insert"}
        assert changes(driver, at - 1, net=True) == [(k, op, at) for k, op in sorted(kinds.items())]

    check()
    build()()
    check()
    driver.flush()
    check()
    assert driver.tablet.rows == len(expected)
    driver.compact()
    driver.reopen()
    check()
    assert driver.tablet.rows == len(expected)
