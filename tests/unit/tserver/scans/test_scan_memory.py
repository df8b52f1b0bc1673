"""The memory of scans: a batch each, and the flushed rows that their views keep; with a common limit."""

import pytest

from nyala.common.errors import Throttled
from nyala.common.options import MIB, Options
from nyala.replica.memory import MemoryPart, MemoryTracker
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tserver.scans.scan_memory import LEAST_BYTES, ScanMemory
from tests.unit.tablet.support.tablet_support import Driver, numbered

OPTIONS = Options(memory_budget_bytes=64 * MIB, scan_memory_bytes=4 * MIB)


def test_flushed_rows_count_towards_scans_that_hold_them(tmp_path):
    driver = Driver(f"{tmp_path}/t")
    driver.write(RowOp.INSERT, numbered(0, 1000))
    memory = MemoryTracker(OPTIONS)
    scans = ScanMemory(memory, OPTIONS)
    rows = driver.tablet.unflushed_bytes()
    assert rows > LEAST_BYTES // 8
    with scans.open(driver.tablet, MIB), scans.open(driver.tablet, 0):
        scans.update_held()
        assert memory.of(MemoryPart.SCANS) == MIB + LEAST_BYTES, (
            "the rows still belong to the tablet"
        )
        driver.flush()
        scans.update_held()
        assert memory.of(MemoryPart.SCANS) == MIB + LEAST_BYTES + rows, (
            "rows held by two scans count once"
        )
        with scans.open(driver.tablet, 0):
            scans.update_held()
            assert memory.of(MemoryPart.SCANS) == MIB + 2 * LEAST_BYTES + rows
    scans.update_held()
    assert (memory.of(MemoryPart.SCANS), memory.used_bytes) == (0, 0)


def test_scans_beyond_memory_limit_are_throttled_except_the_first(tmp_path):
    driver = Driver(f"{tmp_path}/t")
    memory = MemoryTracker(OPTIONS)
    scans = ScanMemory(memory, OPTIONS)
    with scans.open(driver.tablet, 16 * MIB):
        with (
            pytest.raises(Throttled, match="scan_memory_bytes") as caught,
            scans.open(driver.tablet, 1),
        ):
            raise AssertionError("the memory limit was reached")
        assert int(caught.value.details["retry_after_ms"]) > 0
    with scans.open(driver.tablet, 2 * MIB), scans.open(driver.tablet, 2 * MIB):
        assert memory.of(MemoryPart.SCANS) == 4 * MIB


def test_batches_of_a_scan_that_sets_no_size_are_smaller_when_memory_is_short(tmp_path):
    driver = Driver(f"{tmp_path}/t")
    plenty = Options()
    assert ScanMemory(MemoryTracker(plenty), plenty).batch_bytes() == plenty.scan_batch_bytes
    scans = ScanMemory(MemoryTracker(OPTIONS), OPTIONS)
    assert scans.batch_bytes() == 4 * MIB // 16
    with scans.open(driver.tablet, 2 * MIB):
        assert scans.batch_bytes() == 2 * MIB // 16
        with scans.open(driver.tablet, 2 * MIB):
            assert scans.batch_bytes() == LEAST_BYTES
