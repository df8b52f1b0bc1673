"""Rows of the load generator: values of each type, and the numbers of each thread."""

import signal
import threading
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from nyala.client.table import Table
from nyala.common.errors import InvalidArgument
from nyala.operate.perf.loadgen import LoadPlan, load
from nyala.operate.perf.rows import batch_of, column_of
from tests.waiting import within

pytestmark = pytest.mark.row("A13")

TYPES = (
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
    pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    pa.decimal128(5, 2), pa.decimal128(38, 0),
)  # fmt: skip
LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_column_type_has_values_of_every_number(kind):
    numbers = np.array([0, 1, 127, 128, 40_000, 1 << 40, LARGEST], np.int64)
    made = column_of(kind, numbers)
    assert (made.type, len(made), made.null_count) == (kind, len(numbers), 0)
    assert made.equals(column_of(kind, numbers))


def test_keys_of_different_numbers_differ():
    schema = pa.schema([pa.field("k", pa.int64(), nullable=False), ("s", pa.string())])
    made = batch_of(schema, np.arange(1000, dtype=np.int64))
    assert made.schema == schema
    assert made["k"].to_pylist() == list(range(1000))
    assert len(set(made["s"].to_pylist())) == 1000


def test_type_without_values_is_refused():
    with pytest.raises(InvalidArgument, match="no values of type list"):
        column_of(pa.list_(pa.int64()), np.arange(1))


def test_threads_have_all_numbers_once():
    plan = LoadPlan(threads=3, rows_per_thread=25, batch_rows=10, first=7)
    batches = [list(plan.batches(thread)) for thread in range(3)]
    assert [[len(b) for b in some] for some in batches] == [[10, 10, 5]] * 3
    assert np.concatenate([b for some in batches for b in some]).tolist() == list(range(7, 82))


def test_random_numbers_of_a_seed_are_the_same_again_and_differ_between_threads():
    plan = LoadPlan(threads=2, rows_per_thread=50, batch_rows=50, seed=1)
    first, second = (next(plan.batches(thread)) for thread in range(2))
    assert np.array_equal(first, next(plan.batches(0)))
    assert not np.intersect1d(first, second).size
    assert first.min() >= 0


def test_threads_end_soon_after_an_interrupt():
    begun, interrupted = threading.Event(), threading.Event()

    class Endless:
        schema = pa.schema([pa.field("k", pa.int64(), nullable=False)])

        def insert(self, batch):
            begun.set()
            assert interrupted.wait(within(60))
            return SimpleNamespace(rows=batch.num_rows, errors=SimpleNamespace(num_rows=0))

    def interrupt():
        assert begun.wait(within(60))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        interrupted.set()

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        load(cast("Table", Endless()), LoadPlan(2, 1_000_000_000, 1))
