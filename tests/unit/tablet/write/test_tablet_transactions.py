"""Transactions in one tablet: what is staged is not seen, and all of it takes effect at the commit time."""

from dataclasses import replace

import msgspec
import pyarrow as pa
import pytest

from nyala.common.alteration import AddColumn, DropColumn, SetDefault
from nyala.common.errors import InvalidArgument
from nyala.tablet.files import replicated_ops, transaction_ops
from nyala.tablet.files.replicated_ops import RowOp, SchemaOp
from nyala.tablet.files.transaction_ops import (
    KeepOp,
    PartCount,
    PrepareOp,
    ResolveOp,
    StageOp,
    TransactionOutcome,
)
from nyala.tablet.write import apply_transactions, stages
from tests.unit.tablet.support.tablet_support import PAIR_KEY, Driver, numbered, payload
from tests.unit.tablet.support.transaction_support import (
    FIRST,
    REFUSE_S,
    SECOND,
    T1,
    T2,
    Transactions,
)


@pytest.fixture
def txns(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    return Transactions(driver)


def values(driver, at=None):
    return {r["k"]: r["a"] for r in driver.rows(at)}


def codes(result):
    return [(e.row, e.code) for e in result.errors]


def test_stage_is_seen_at_its_commit_time_and_not_before(driver, txns):
    before = values(driver)
    txns.upsert(T1, 1, 7, a=50)
    txns.stage(T1, RowOp.DELETE, [{"k": 2}, {"k": 99}], ["k"])
    prepared = txns.prepare(T1)
    assert (prepared.outcome, prepared.time) == (TransactionOutcome.DONE, driver.now)
    assert values(driver) == before
    result = txns.resolve(T1, prepared.time + 3)
    assert (result.outcome, result.time) == (TransactionOutcome.ENDED, prepared.time + 3)
    assert values(driver, prepared.time + 2) == before
    assert values(driver, prepared.time + 3) == {0: 0, 1: 50, 7: 50}
    assert driver.tablet.rows == 3


def test_parts_take_effect_in_the_order_of_the_prepare_and_others_do_not(driver, txns):
    for part, value in (("x", 10), ("y", 20), ("z", 30)):
        txns.upsert(T1, 1, a=value, part=part)
    txns.prepare(T1, ["z", "x"])
    txns.resolve(T1, driver.now + 1)
    assert values(driver)[1] == 10


def test_batches_of_a_part_take_effect_in_the_order_of_their_numbers(driver, txns):
    rows = [payload(driver.schema, RowOp.UPSERT, [{"k": 1, "a": a}], ["k", "a"]) for a in (5, 6)]
    for number in (1, 0):
        txns.apply(StageOp(T1, "a", number, rows[number]))
    txns.parts[T1] = {"a": rows}
    txns.commit(T1)
    assert values(driver)[1] == 6
    assert {r["k"]: r["s"] for r in driver.rows()}[1] == "s1"


def test_row_written_twice_by_a_transaction_has_one_version_in_every_read(driver, txns):
    for value in (1, 2):
        txns.upsert(T1, 1, 8, a=value)
    txns.stage(T1, RowOp.DELETE, [{"k": 8}], ["k"])
    before = driver.now
    at = txns.commit(T1)

    def check():
        assert values(driver, at) == {0: 0, 1: 2, 2: 2}
        for net in (False, True):
            feed = driver.tablet.view().changes(before, driver.now, net=net)
            rows = [r for b in feed for r in b.to_pylist()]
            assert [(r["k"], r["a"], r["_op"], r["_timestamp"]) for r in rows] == [
                (1, 2, "update", at)
            ]

    check()
    driver.flush()
    check()
    assert sum(d.rows for d in driver.disk_rowsets()) == 3 + 1  # neither version of row 8
    driver.compact()
    check()
    driver.reopen()
    check()


def test_staged_batch_sent_again_counts_once_and_another_is_refused(driver, txns):
    batch = payload(driver.schema, RowOp.UPSERT, numbered(5, 6))
    other = payload(driver.schema, RowOp.UPSERT, numbered(6, 7))
    first = txns.apply(StageOp(T1, "a", 0, batch))
    again = txns.apply(StageOp(T1, "a", 0, batch))
    assert (first.outcome, again.outcome) == (TransactionOutcome.DONE, TransactionOutcome.DONE)
    refused = txns.apply(StageOp(T1, "a", 0, other))
    assert (refused.outcome, codes(refused)) == (TransactionOutcome.REFUSED, [(0, "other_batch")])
    txns.parts[T1] = {"a": [batch]}
    txns.commit(T1)
    assert set(values(driver)) == {0, 1, 2, 5}


@pytest.mark.parametrize(
    ("op", "code"),
    [
        (RowOp.INSERT, "not_in_transaction"),
        (RowOp.UPDATE, "not_in_transaction"),
        (RowOp.INSERT_IGNORE, None),
        (RowOp.UPSERT, None),
        (RowOp.UPSERT_IGNORE, None),
        (RowOp.UPDATE_IGNORE, None),
        (RowOp.DELETE, None),
        (RowOp.DELETE_IGNORE, None),
    ],
)
def test_only_operations_that_cannot_fail_because_of_rows_are_staged(driver, txns, op, code):
    mixed = [{"k": 1, "a": 1, "s": "", "_op": RowOp.UPSERT}, {"k": 1, "a": 1, "s": "", "_op": op}]
    alone = txns.stage(T1, op, [{"k": 1, "a": 1, "s": ""}], part="alone")
    among = txns.stage(T1, RowOp.MIXED, mixed, part="mixed")
    assert codes(alone) == ([(0, code)] if code else [])
    assert codes(among) == ([(1, code)] if code else [])
    assert (T1 in driver.tablet.store.stages.stages) == (code is None)


def test_rows_that_could_fail_by_their_values_are_refused_at_staging(tmp_path):
    driver = Driver(str(tmp_path / "t"), PAIR_KEY)
    txns = Transactions(driver)
    row = {"host": "h", "n": 1, "a": 1, "s": "", "b": b""}
    given = ["host", "n", "a", "s"]
    assert codes(txns.stage(T1, RowOp.UPSERT, [row, row])) == [(0, "immutable"), (1, "immutable")]
    assert codes(txns.stage(T1, RowOp.UPSERT, [row], ["host", "n", "s"])) == [(0, "null_value")]
    assert codes(txns.stage(T1, RowOp.UPSERT, [{**row, "n": None}], given)) == [(0, "null_key")]
    assert codes(txns.stage(T1, RowOp.UPSERT, [{**row, "a": None}], given)) == [(0, "null_value")]
    assert codes(txns.stage(T1, RowOp.UPSERT, [{**row, "s": "x" * 70_000}], given)) == [
        (0, "too_large")
    ]
    whole = txns.stage(T1, RowOp.UPSERT, [row], given, all_or_nothing=True)
    assert codes(whole) == [(0, "not_in_transaction")]
    assert not driver.tablet.store.stages.stages
    assert not codes(txns.stage(T1, RowOp.UPSERT_IGNORE, [row]))
    assert not codes(txns.stage(T1, RowOp.UPDATE_IGNORE, [row], ["host", "n", "s"]))


@pytest.mark.parametrize("batch", [b"", b"\x01", b"\x01\x03" + bytes(40), b"\x01\x20" + bytes(40)])
def test_staged_bytes_that_are_no_write_are_refused_and_the_tablet_goes_on(driver, txns, batch):
    result = txns.apply(StageOp(T1, "a", 0, batch))
    assert (result.outcome, codes(result)) == (TransactionOutcome.REFUSED, [(0, "malformed")])
    driver.write(RowOp.UPSERT, numbered(0, 1))


@pytest.mark.parametrize(
    "op",
    [
        StageOp(b"short", "a", 0, b""),
        StageOp(T1, "", 0, b""),
        StageOp(T1, "a" * 129, 0, b""),
        StageOp(T1, "a", -1, b""),
        StageOp(T1, "a", 1 << 31, b""),
        StageOp(T1, "a", 1 << 70, b""),
        KeepOp(T1 + b"1"),
        ResolveOp(T1, 1 << 63),
        ResolveOp(T1, -1),
        PrepareOp(T1, (1, 1, 1 << 63), (), 0, 1),
        PrepareOp(T1, (1, 1, 1), (PartCount("a", 1, 1 << 32),), 0, 1),
        PrepareOp(T1, (1, 1, 1), (), 0, 31_622_401),
    ],
)
def test_values_outside_their_limits_are_refused_before_they_are_replicated(op):
    with pytest.raises(InvalidArgument, match="no tablet can apply"):
        transaction_ops.encode(op)


def test_prepare_without_every_batch_drops_the_stage_for_good(driver, txns):
    txns.upsert(T1, 1)
    short = [PartCount("a", 2, 0)]
    result = txns.prepare(T1, counts=short)
    assert (result.outcome, codes(result)) == (TransactionOutcome.GONE, [(0, "not_whole")])
    assert txns.prepare(T1).outcome is TransactionOutcome.GONE
    again = txns.apply(StageOp(T1, "a", 0, txns.parts[T1]["a"][0]))
    assert again.outcome is TransactionOutcome.GONE
    assert driver.tablet.store.stages.stages == {}
    txns.apply(KeepOp(T1), step=(REFUSE_S * 1_000_000 << 12) + 100)
    assert (
        txns.apply(StageOp(T1, "a", 0, txns.parts[T1]["a"][0])).outcome is TransactionOutcome.DONE
    )


@pytest.mark.parametrize("change", ["crc", "batches", "part", "twice"])
def test_prepare_checks_number_content_and_names_of_parts(txns, change):
    txns.upsert(T1, 1)
    [count] = txns.counts(T1)
    wrong = {
        "crc": [msgspec.structs.replace(count, crc=count.crc ^ 1)],
        "batches": [msgspec.structs.replace(count, batches=2)],
        "part": [msgspec.structs.replace(count, part="b")],
        "twice": [count, count],
    }[change]
    assert txns.prepare(T1, counts=wrong).outcome is TransactionOutcome.GONE


def test_prepared_stage_keeps_its_time_and_takes_no_batch_and_no_drop(driver, txns):
    txns.upsert(T1, 1, a=5)
    held = txns.prepare(T1).time
    batch = payload(driver.schema, RowOp.UPSERT, numbered(5, 6))
    assert txns.apply(StageOp(T1, "a", 1, batch)).outcome is TransactionOutcome.PREPARED
    assert txns.drop(T1).outcome is TransactionOutcome.PREPARED
    again = txns.prepare(T1, attempt=SECOND)
    assert (again.outcome, again.time) == (TransactionOutcome.DONE, held)
    assert txns.prepare(T1, attempt=FIRST).outcome is TransactionOutcome.OLDER
    assert txns.unprepare(T1, FIRST).outcome is TransactionOutcome.PREPARED
    assert driver.tablet.store.stages.earliest == held
    txns.resolve(T1, held + 1)
    assert set(values(driver)) == {0, 1, 2}


@pytest.mark.parametrize("change", ["other", "fewer", "order", "bytes"])
def test_prepare_with_other_parts_than_those_that_are_prepared_is_refused(driver, txns, change):
    txns.upsert(T1, 5, a=5, part="a")
    txns.upsert(T1, 5, a=6, part="b")
    first = txns.counts(T1)
    prepared = txns.prepare(T1, counts=first)
    counts = {
        "other": [PartCount("c", 1, 12345)],
        "fewer": first[:1],
        "order": first[::-1],
        "bytes": [PartCount("a", 1, 12345), first[1]],
    }[change]
    refused = txns.prepare(T1, counts=counts, attempt=SECOND)
    assert refused.outcome is TransactionOutcome.REFUSED
    assert "is prepared with other parts" in refused.errors[0].message
    again = txns.prepare(T1, counts=first, attempt=SECOND)
    assert (again.outcome, again.time) == (TransactionOutcome.DONE, prepared.time)
    txns.resolve(T1, prepared.time + 1)
    assert values(driver)[5] == 6


def test_unprepare_keeps_the_stage_and_refuses_older_attempts(driver, txns):
    txns.upsert(T1, 1, a=5)
    first = txns.prepare(T1).time
    assert txns.unprepare(T1, FIRST).outcome is TransactionOutcome.DONE
    assert driver.tablet.store.stages.earliest is None
    assert txns.resolve(T1, first + 1).outcome is TransactionOutcome.UNKNOWN
    assert txns.prepare(T1, attempt=(1, 1, 0)).outcome is TransactionOutcome.OLDER
    second = txns.prepare(T1, attempt=SECOND).time
    assert second > first
    txns.resolve(T1, second + 1)
    assert values(driver)[1] == 5


def test_expired_stage_is_dropped_only_if_it_was_not_kept_since(txns):
    txns.upsert(T1, 1)
    bound = txns.driver.now
    txns.apply(KeepOp(T1))
    assert txns.drop(T1, kept_until=bound).outcome is TransactionOutcome.UNKNOWN
    assert txns.drop(T1, kept_until=txns.driver.now - 10).outcome is TransactionOutcome.GONE
    assert txns.prepare(T1).outcome is TransactionOutcome.GONE


def test_drop_of_unknown_transaction_refuses_a_late_stage(txns):
    assert txns.drop(T1).outcome is TransactionOutcome.GONE
    batch = payload(txns.driver.schema, RowOp.UPSERT, numbered(5, 6))
    assert txns.apply(StageOp(T1, "a", 0, batch)).outcome is TransactionOutcome.GONE
    txns.driver.flush()
    txns.driver.reopen()
    assert txns.apply(StageOp(T1, "a", 0, batch)).outcome is TransactionOutcome.GONE


def test_ended_transaction_answers_with_its_commit_time_until_it_is_settled(driver, txns):
    txns.upsert(T1, 1, a=5)
    at = txns.commit(T1)
    batch = txns.parts[T1]["a"][0]
    for op in (StageOp(T1, "a", 0, batch), ResolveOp(T1, at + 1), KeepOp(T1)):
        result = txns.apply(op)
        assert (result.outcome, result.time) == (TransactionOutcome.ENDED, at)
    for result in (txns.drop(T1), txns.prepare(T1, attempt=SECOND), txns.unprepare(T1, SECOND)):
        assert (result.outcome, result.time) == (TransactionOutcome.ENDED, at)
    txns.upsert(T2, 2)
    txns.prepare(T2, settled=at - 1)
    assert T1 in driver.tablet.store.stages.ended
    txns.prepare(T2, attempt=SECOND, settled=at)
    assert driver.tablet.store.stages.ended == {}


def test_commit_time_out_of_order_is_refused_and_the_tablet_stays_prepared(driver, txns):
    txns.upsert(T1, 1, a=5)
    held = txns.prepare(T1).time
    for later in (None, 10, 11):  # the entry's stamp is the last one and 10
        result = txns.resolve(T1, held if later is None else driver.now + later)
        assert (result.outcome, codes(result)) == (
            TransactionOutcome.REFUSED,
            [(0, "out_of_order")],
        )
    driver.write(RowOp.UPSERT, numbered(0, 1))  # no leader proposes it
    assert codes(txns.resolve(T1, driver.now)) == [(0, "out_of_order")]
    assert txns.resolve(T1, driver.now).outcome is TransactionOutcome.ENDED


def test_several_prepared_transactions_take_effect_in_the_order_of_commit_times(driver, txns):
    txns.upsert(T1, 1, a=5)
    txns.upsert(T2, 1, a=6)
    p1, p2 = txns.prepare(T1).time, txns.prepare(T2).time
    assert driver.tablet.store.stages.earliest == p1
    txns.resolve(T2, p2 + 1)
    assert driver.tablet.store.stages.earliest == p1
    assert codes(txns.resolve(T1, p2)) == [(0, "out_of_order")]
    txns.resolve(T1, p2 + 2)
    assert (values(driver, p2 + 1)[1], values(driver, p2 + 2)[1]) == (6, 5)


def test_schema_changed_after_the_stage_is_checked_at_the_prepare(driver, txns):
    txns.upsert(T1, 1, a=5)
    txns.stage(T2, RowOp.UPSERT, [{"k": 2, "a": 6, "s": ""}])
    driver.alter(DropColumn("s"))
    txns.commit(T1)
    assert {r["k"]: r for r in driver.rows()}[1] == {"k": 1, "a": 5}
    txns.prepare(T2)
    driver.alter(AddColumn("n", pa.int64()))  # no leader proposes it
    result = txns.resolve(T2, driver.now + 1)
    assert (result.outcome, codes(result)) == (TransactionOutcome.REFUSED, [(0, "schema_changed")])


def test_stage_that_could_fail_under_a_later_schema_is_refused_at_the_prepare(driver, txns):
    txns.upsert(T1, 1, a=5)
    driver.alter(AddColumn("n", pa.int64(), nullable=False, default=7))
    driver.alter(SetDefault("n", None))
    result = txns.prepare(T1)
    assert (result.outcome, codes(result)) == (TransactionOutcome.GONE, [(0, "null_value")])
    assert values(driver)[1] == 1


def test_retired_tablet_refuses_stages_and_prepares(driver, txns):
    txns.upsert(T1, 1)
    schema = replace(driver.schema, version=driver.schema.version + 1)
    retired = SchemaOp(schema, "t", {}, schema.version, retire=True)
    driver.tablet.apply([driver.entry(replicated_ops.encode_schema(retired))])
    assert codes(txns.stage(T2, RowOp.UPSERT, numbered(0, 1))) == [(0, "range_dropped")]
    assert codes(txns.prepare(T1)) == [(0, "range_dropped")]


@pytest.mark.parametrize(
    ("limit", "code"),
    [("MAX_STAGES", "too_many_transactions"), ("MAX_BATCHES", "too_many_batches")],
)
def test_numbers_of_stages_and_batches_are_bounded(txns, monkeypatch, limit, code):
    monkeypatch.setattr(stages, limit, 1)
    monkeypatch.setattr(apply_transactions, limit, 1)
    txns.upsert(T1, 1)
    other = T2 if limit == "MAX_STAGES" else T1
    assert codes(txns.stage(other, RowOp.UPSERT, numbered(0, 1))) == [(0, code)]


def test_number_of_dropped_transactions_is_bounded(txns, monkeypatch):
    monkeypatch.setattr(apply_transactions, "MAX_DROPPED", 1)
    assert txns.drop(T1).outcome is TransactionOutcome.GONE
    assert codes(txns.drop(T2)) == [(0, "too_many_transactions")]
    txns.upsert(T2, 1)
    assert txns.drop(T2).outcome is TransactionOutcome.GONE
