"""Reduced run of the operation fuzzer, regression tests, and minimisation of a failing sequence."""

import random

import pyarrow as pa
import pytest

from nyala.common.schema import from_arrow
from nyala.tablet.files.replicated_ops import RowOp
from tests.properties import tablet_fuzz as fuzz
from tests.properties.support import tablet_steps as steps
from tests.properties.support.tablet_model import WRITES
from tests.properties.support.tablet_rows import weak_hash
from tests.selected import first
from tests.sim.world.files import SimDisk
from tests.unit.tablet.support.tablet_support import Driver


def test_fuzzer_covers_required_number_of_operation_kinds():
    assert len(steps.STEPS) >= 23


@pytest.mark.row("A3", "A5", "A7")
@pytest.mark.parametrize("seed", first(range(1, 5)))
def test_thousand_random_operations_on_five_keys_equal_model(seed):
    report = fuzz.run(seed, 1000, 20)
    assert report is None, report


def test_regression_empty_batch_with_decimal_key():
    """Regression: the key encoder wrote into its read-only input, and the tablet failed."""
    schema = from_arrow(pa.schema([("k", pa.decimal128(5, 2)), ("v", pa.int8())]), ["k"])
    driver = Driver("data/t", schema, files=SimDisk(random.Random(1)).mount())
    for op in WRITES:
        assert driver.write_full(op, []) == (0, [])


def test_prefix_key_is_distinct_from_longer_key_with_colliding_hash():
    schema = from_arrow(pa.schema([("k", pa.string()), ("v", pa.int8())]), ["k"])
    files = SimDisk(random.Random(1)).mount()
    driver = Driver("data/t", schema, files=files, hash_keys=weak_hash)
    rows = [{"k": k, "v": n} for n, k in enumerate(["", "ab", "abcd", "abcdefgh", "abcdefghij"])]
    for half in (rows[::2], rows[1::2]):
        assert driver.write(RowOp.INSERT, half) == []
        driver.flush()
    assert driver.write(RowOp.INSERT, rows) == [(n, "already_present") for n in range(5)]
    assert driver.rows(ordered=True) == rows


def test_failing_sequence_is_minimised(monkeypatch):
    def collapse(world, chance):
        world.model.rows = dict(list(world.model.rows.items())[:-1])

    monkeypatch.setitem(steps.STEPS, "forget", collapse)
    operations = [*fuzz.draw(1, 40), ("upsert", 5), ("forget", 1), *fuzz.draw(2, 20)]
    assert fuzz.problem(1, operations)
    kept = fuzz.shortest(1, operations, 20)
    assert ("forget", 1) in kept
    assert len(kept) <= 3
