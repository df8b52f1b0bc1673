"""Rows that are built while they are staged: a commit adds them with the effect of their batches."""

import random

import pyarrow as pa
import pytest

from nyala.common.alteration import AddColumn
from nyala.storage.steps import advance
from nyala.tablet.files import transaction_ops
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.files.transaction_ops import ResolveOp
from nyala.tablet.write import built_rows
from tests.unit.tablet.support.tablet_support import Driver
from tests.unit.tablet.support.transaction_support import T1, T2, Transactions

PARTS = ("a", "b", "c")


@pytest.fixture
def txns(driver, monkeypatch):
    monkeypatch.setattr(built_rows, "LEAST_BATCH_ROWS", 2)
    monkeypatch.setattr(built_rows, "LEAST_ROWS", 2)
    return Transactions(driver)


def built(txns, transaction=T1):
    """Return, by part, the numbers of the batches whose rows are built."""
    stage = txns.driver.tablet.stages.stages[transaction]
    return {
        part: [n for rows in found for n in range(rows.first, rows.first + rows.batches)]
        for part, found in stage.built.items()
        if found
    }


def rows(driver, at=None):
    found = driver.rows() if at is None else driver.rows(at)
    return {r["k"]: (r["a"], r["s"]) for r in found}


def test_built_rows_replace_what_is_there_at_the_commit_time(driver, txns):
    driver.write(RowOp.UPSERT, [{"k": k, "a": 0, "s": "disk"} for k in (1, 2)])
    driver.flush()
    driver.write(RowOp.UPSERT, [{"k": k, "a": 0, "s": "memory"} for k in (3, 4)])
    before = rows(driver)
    txns.upsert(T1, 2, 3, 5, a=7)
    txns.upsert(T1, 5, 6, a=8)
    assert built(txns) == {"a": [0, 1]}
    at = txns.commit(T1)
    assert rows(driver, at - 1) == before
    expected = {**before, 2: (7, "t"), 3: (7, "t"), 5: (8, "t"), 6: (8, "t")}
    assert rows(driver, at) == expected
    assert driver.tablet.rows == len(expected)
    driver.write(RowOp.DELETE, [{"k": 5}, {"k": 1}], ["k"])
    driver.flush()
    driver.reopen()
    assert rows(driver, at) == expected
    assert sorted(rows(driver)) == [2, 3, 4, 6]


def test_batches_between_built_ones_keep_their_place(driver, txns):
    txns.upsert(T1, 1, 2, 3, a=1)
    txns.stage(T1, RowOp.DELETE, [{"k": 1}, {"k": 2}], ["k"])
    txns.upsert(T1, 1, 9, a=2)
    txns.upsert(T1, 8, a=3)  # too few rows to be built
    txns.upsert(T1, 8, 9, a=4)
    assert built(txns) == {"a": [0, 2, 4]}
    txns.commit(T1)
    assert {k: a for k, (a, _) in rows(driver).items()} == {1: 2, 3: 1, 8: 4, 9: 4}
    assert driver.tablet.rows == 4


def test_condition_selects_the_built_rows_before_it(driver, txns):
    driver.write(RowOp.UPSERT, [{"k": 5, "a": 5, "s": "t"}])
    txns.upsert(T1, 1, 2, a=5)
    txns.delete_where(T1, "a = 5")
    txns.upsert(T1, 2, 3, a=5)
    txns.commit(T1)
    assert sorted(rows(driver)) == [2, 3]


def test_parts_that_do_not_count_leave_nothing(driver, txns):
    txns.upsert(T1, 1, 2, part="failed")
    txns.upsert(T1, 3, 4, part="a")
    held = driver.tablet.stages.built_bytes
    at = txns.prepare(T1, ["a"]).time + 1
    assert 0 < driver.tablet.stages.built_bytes < held
    txns.resolve(T1, at)
    assert sorted(rows(driver)) == [3, 4]
    assert driver.tablet.stages.built_bytes == 0


def test_dropped_stage_frees_its_built_rows(driver, txns):
    txns.upsert(T1, 1, 2)
    assert driver.tablet.unflushed_bytes() > driver.tablet.stages.built_bytes > 0
    txns.drop(T1)
    assert driver.tablet.stages.built_bytes == 0
    assert driver.tablet.unflushed_bytes() == 0


def test_built_rows_do_not_count_twice_in_the_size_of_the_tablet(driver, txns):
    """It counts for the table's quota, and a follower that has restarted has no built rows."""
    txns.upsert(T1, 1, 2)
    stages = driver.tablet.stages
    assert stages.built_bytes > 0
    assert driver.tablet.data_bytes == stages.size_bytes


def test_rowsets_that_wait_for_a_flush_are_few_after_many_transactions(driver, txns):
    for number in range(60):
        transaction = bytes([100 + number]) * 16
        txns.upsert(transaction, *range(4 * number, 4 * number + 4))
        txns.commit(transaction)
    frozen = len(driver.tablet.store.frozen)
    assert built_rows.DOUBLING < frozen <= 3 * built_rows.DOUBLING
    assert sorted(rows(driver)) == list(range(240))
    txns.upsert(T1, *range(100))  # a larger one is added all the same
    txns.commit(T1)
    assert len(driver.tablet.store.frozen) > frozen


@pytest.mark.parametrize("flushes", [1, 2])
def test_second_flush_drops_built_rows_and_the_commit_has_all_the_same(driver, txns, flushes):
    txns.upsert(T1, 1, 2, a=1)
    for _ in range(flushes):
        driver.write(RowOp.UPSERT, [{"k": 9, "a": 9, "s": "w"}])
        driver.flush()
    kept = driver.tablet.stages.built_bytes
    assert driver.tablet.unflushed_bytes() == kept
    assert (kept > 0) == (flushes == 1)
    txns.upsert(T1, 2, 3, a=2)
    assert built(txns) == {"a": [0, 1] if flushes == 1 else [1]}
    txns.commit(T1)
    assert driver.tablet.stages.built_bytes == 0
    assert {k: a for k, (a, _) in rows(driver).items()} == {1: 1, 2: 2, 3: 2, 9: 9}


def test_second_flush_frees_built_rows_though_nothing_was_applied_since(driver, txns):
    """Memory that no flush frees would keep writes to all tablets of the server waiting."""
    txns.upsert(T1, 1, 2, a=1)
    assert driver.flush()
    assert driver.tablet.unflushed_bytes() > 0
    assert not driver.flush(), "there is nothing to write"
    assert driver.tablet.unflushed_bytes() == 0
    txns.commit(T1)
    assert sorted(rows(driver)) == [1, 2]


def test_batch_that_comes_late_is_applied_at_its_place(driver, txns):
    for number, key in ((1, 1), (3, 3), (0, 0), (2, 2)):
        batches = txns.parts.setdefault(T1, {}).setdefault("a", [])
        del batches[:]
        batches += [b""] * number
        txns.upsert(T1, 7, 10 + key, a=key)
        late = batches.pop()
        txns.parts.setdefault(b"kept", {})[str(number)] = [late]
    assert built(txns) == {"a": [1, 3]}
    kept = txns.parts.pop(b"kept")
    txns.parts[T1]["a"] = [kept[str(n)][0] for n in range(4)]
    txns.commit(T1)
    found = {k: a for k, (a, _) in rows(driver).items()}
    assert found == {7: 3, 10: 0, 11: 1, 12: 2, 13: 3}


def test_few_rows_are_not_added_as_a_rowset(driver, txns, monkeypatch):
    monkeypatch.setattr(built_rows, "LEAST_ROWS", 3)
    txns.upsert(T1, 1, 2)
    txns.commit(T1)
    txns.upsert(T2, 2, 3, 4)
    assert not driver.tablet.store.frozen
    txns.commit(T2)
    assert len(driver.tablet.store.frozen) == 2, "the rows before, and those that were built"
    assert sorted(rows(driver)) == [1, 2, 3, 4]


def test_number_of_rowsets_of_a_commit_is_bounded(driver, txns, monkeypatch):
    monkeypatch.setattr(built_rows, "MAX_RUNS", 2)
    for number, part in enumerate(("a", "b", "c", "d")):
        txns.upsert(T1, *range(number, number + 2 + number % 2), a=number, part=part)
    txns.commit(T1)
    assert len(driver.tablet.store.frozen) <= 4
    assert {k: a for k, (a, _) in rows(driver).items()} == {0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 3}


def test_flush_between_the_steps_of_a_commit_loses_and_doubles_nothing(driver, txns):
    driver.write(RowOp.UPSERT, [{"k": k, "a": 0, "s": "old"} for k in range(4)])
    txns.upsert(T1, 1, 2, 3, a=1)
    txns.upsert(T1, 3, 4, a=2, part="b")
    before = rows(driver)
    at = txns.prepare(T1).time + 1
    install = driver.tablet.prepare_flush(driver.flush_point())()
    steps = driver.tablet.apply_in_steps([driver.entry(transaction_ops.encode(ResolveOp(T1, at)))])
    for number in range(2):
        assert advance(steps) is None, "each rowset is a step"
        if number == 1:
            install()
    assert advance(steps) is not None
    for _ in range(2):
        assert rows(driver, at - 1) == before
        assert {k: a for k, (a, _) in rows(driver, at).items()} == {0: 0, 1: 1, 2: 1, 3: 2, 4: 2}
        assert driver.tablet.rows == 5
        driver.flush()
        driver.reopen()


def test_rows_that_end_while_the_built_ones_are_flushed_stay_ended(driver, txns):
    txns.upsert(T1, 1, 2, 3, a=1)
    txns.commit(T1)
    install = driver.tablet.prepare_flush(driver.flush_point())()
    driver.write(RowOp.DELETE, [{"k": 2}], ["k"])
    install()
    assert sorted(rows(driver)) == [1, 3]
    driver.flush()
    driver.reopen()
    assert sorted(rows(driver)) == [1, 3]


def test_altered_columns_leave_the_built_rows_unused(driver, txns):
    """Rows that were staged without a column keep the value that another write gave it since."""
    txns.upsert(T1, 1, 2, a=1)
    driver.alter(AddColumn("more", pa.int64()))
    driver.write(RowOp.UPSERT, [{"k": 1, "a": 0, "s": "w", "more": 5}])
    txns.commit(T1)
    assert [(r["k"], r["a"], r["more"]) for r in driver.rows()] == [(1, 1, 5), (2, 1, None)]


@pytest.mark.parametrize("seed", range(6))
def test_random_transactions_have_the_effect_of_their_batches(tmp_path, monkeypatch, seed):
    """A tablet that builds rows, and one that does not, give equal rows at all times."""
    rng = random.Random(seed)
    script = [_random_step(rng) for _ in range(60)]
    found = []
    for least in (2, 1 << 40):
        monkeypatch.setattr(built_rows, "LEAST_BATCH_ROWS", least)
        monkeypatch.setattr(built_rows, "LEAST_ROWS", 2)
        driver = Driver(str(tmp_path / str(least)))
        txns = Transactions(driver)
        times = [t for step in script if (t := _play(driver, txns, step)) is not None]
        found.append([(t, rows(driver, t)) for t in times] + [driver.tablet.rows])
        driver.flush()
        driver.reopen()
        found[-1].append([rows(driver, t) for t in times])
    assert found[0] == found[1]


def _random_step(rng):
    kind = rng.choice(["stage"] * 6 + ["write", "delete", "where", "commit", "commit", "flush"])
    keys = sorted(rng.sample(range(20), rng.randrange(1, 6)))
    return kind, keys, rng.randrange(100), rng.choice(PARTS), rng.choice((T1, T2))


def _play(driver, txns, step):
    """Apply a step; return the commit time of a transaction."""
    kind, keys, value, part, _ = step
    if kind == "stage":
        txns.upsert(T1, *keys, a=value, part=part)
    elif kind == "delete":
        txns.stage(T1, RowOp.DELETE, [{"k": k} for k in keys], ["k"], part=part)
    elif kind == "where":
        txns.delete_where(T1, f"a < {value}", part=part)
    elif kind == "write":
        driver.write(RowOp.UPSERT, [{"k": k, "a": value, "s": "w"} for k in keys])
    elif kind == "flush":
        driver.flush()
    elif txns.parts.get(T1):
        at = txns.commit(T1)
        del txns.parts[T1]
        txns.apply(transaction_ops.PrepareOp(T2, (1, 1, 1), (), at, 60))  # T1 may be used again
        return at
    return None
