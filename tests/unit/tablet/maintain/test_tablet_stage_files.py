"""Files of staged batches: their size in reports, their limit, and their verification offline."""

from pathlib import Path

import pytest

from nyala.common.errors import Corrupt
from nyala.machines import registry
from nyala.tablet.files.replicated_ops import RowOp
from tests.unit.tablet.support.tablet_support import numbered
from tests.unit.tablet.support.transaction_support import T1, T2, Transactions


@pytest.fixture
def txns(driver):
    driver.write(RowOp.INSERT, numbered(0, 4))
    return Transactions(driver)


def test_staged_bytes_count_in_memory_and_in_files(driver, txns):
    driver.flush()
    before = driver.tablet.data_bytes
    txns.upsert(T1, 10, 11, a=1)
    txns.upsert(T2, 12, a=2)
    staged = driver.tablet.stages.size_of(T1) + driver.tablet.stages.size_of(T2)
    assert staged > 0
    assert driver.tablet.stages.size_bytes >= staged
    assert driver.tablet.data_bytes >= before + staged
    driver.flush()
    assert driver.tablet.unflushed_bytes() == 0
    assert driver.tablet.stages.size_bytes == staged
    assert driver.tablet.data_bytes == before + staged
    driver.reopen()
    assert driver.tablet.data_bytes == before + staged
    txns.drop(T1)
    assert driver.tablet.stages.size_bytes == driver.tablet.stages.size_of(T2)
    txns.commit(T2)
    assert driver.tablet.stages.size_bytes == 0


def test_parts_that_do_not_count_are_freed_by_the_prepare(driver, txns):
    txns.upsert(T1, 10, a=1)
    one = driver.tablet.stages.size_of(T1)
    txns.upsert(T1, 11, a=1, part="b")
    driver.flush()
    txns.prepare(T1, ["a"])
    assert driver.tablet.stages.size_bytes == one


def test_prepared_transactions_are_a_value_that_does_not_change(driver, txns):
    txns.upsert(T1, 10, a=1)
    before = driver.tablet.prepared
    time = txns.prepare(T1).time
    held = driver.tablet.prepared
    assert (before, list(held), held[T1].at) == ({}, [T1], time)
    attempt = held[T1].attempt
    raised = (attempt[0], attempt[1], attempt[2] + 1)
    txns.prepare(T1, attempt=raised)
    assert held[T1].attempt == attempt
    assert driver.tablet.prepared[T1] == (time, raised)


def test_verification_reads_staged_batches(driver, txns):
    txns.upsert(T1, 10, 11, a=1)
    driver.flush()
    driver.reopen()
    assert registry.TABLE.verify(driver.tablet) == 4


def test_damage_of_a_staged_batch_is_found_by_verification(driver, txns):
    txns.upsert(T1, 10, 11, a=1)
    driver.flush()
    (path,) = Path(driver.directory).glob("*.stg")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    driver.reopen()
    with pytest.raises(Corrupt):
        registry.TABLE.verify(driver.tablet)
