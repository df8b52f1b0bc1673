"""Kernels are compiled once, when they are imported, and never again for other array kinds."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import from_bytes
from nyala.common.schema import Column
from nyala.tablet.files.column_stats import RunningStats
from nyala.tablet.files.key_order import order_of, take_many
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.kernels import (
    gather_values,
    ipc_messages,
    key_bytes,
    key_index,
    live_versions,
    row_decisions,
    sort_rows,
    successors,
)
from tests.unit.tablet.support.tablet_support import INT_KEY, Driver, numbered, payload


def dispatchers():
    every = [
        key_index,
        row_decisions,
        gather_values,
        key_bytes,
        live_versions,
        ipc_messages,
        sort_rows,
        successors,
    ]
    found = [(f"{m.__name__}.{n}", v) for m in every for n, v in vars(m).items()]
    return {n: v for n, v in found if hasattr(v, "py_func")}


def test_kernels_are_not_compiled_at_run_time(tmp_path):
    assert key_index.warm() == len(dispatchers()) > 20
    driver = Driver(str(tmp_path / "t"))
    for start in (0, 3):
        driver.write(RowOp.UPSERT, numbered(start, start + 5))  # writable arrays
        few = [driver.entry(payload(INT_KEY, RowOp.UPSERT, numbered(k, k + 1))) for k in (0, 1)]
        driver.tablet.apply(few)
        driver.flush()  # and then mapped, read-only ones
    driver.compact()
    assert len(driver.rows(ordered=True)) == 8
    assert {n: len(d.signatures) for n, d in dispatchers().items() if len(d.signatures) != 1} == {}


def test_index_slot_holds_largest_row_number():
    slots, hashes = np.zeros(4, np.uint64), np.zeros(1, np.uint64)
    hashes[0] = 0xABCDEF0123456789
    key_index.link(slots, hashes, np.zeros(1, np.int64), np.full(1, -1, np.int64))
    assert slots.tolist() == [0xABCDEF01 << 32 | 1, 0, 0, 0]  # 0x23456789 * 4 >> 32
    assert (key_index.MAX_ROWS + 1) >> 32 == 0


def test_key_sort_equals_arrow_sort_for_any_bytes():
    chance = random.Random(3)
    letters = (b"\0a", b"\0\1", b"\xff\xfe", bytes(range(256)))
    for number in range(150):
        alphabet, count = letters[number % 4], chance.choice((2, 3, 20, 200))
        prefix = bytes(chance.choices(alphabet, k=chance.choice((0, 3, 8, 17))))
        sizes = [chance.choice((0, 1, 7, 8, 9, 16, 17, 30)) for _ in range(count)]
        if number % 3 == 0:  # of one length; if few bytes differ, one word contains them
            sizes = [sizes[0]] * count
        pool = [prefix + bytes(chance.choices(alphabet, k=n)) for n in sizes]
        keys = chance.choices(pool[: chance.choice((2, count))], k=count)
        if number % 5 == 0:
            keys.sort()
        ins = np.array(chance.sample(range(1000), count), np.uint64)
        table = pa.table({"key": pa.array(keys, pa.binary()), "ins": ins})
        by = [("key", "ascending"), ("ins", "ascending")]
        expected = pc.sort_indices(table, sort_keys=by).to_pylist()
        assert order_of(from_bytes(keys), ins).tolist() == expected


@pytest.mark.parametrize("differ", [0, 1, 8, 9])
def test_keys_with_few_differing_bytes_are_compared_by_one_word(differ):
    chance = random.Random(differ)
    places = sorted(chance.sample(range(19), differ))
    keys = [
        bytes(chance.choice((0, 255, 7)) if k in places else k for k in range(19))
        for _ in range(300)
    ]
    found = np.empty(8, np.int64)
    given = from_bytes(keys)
    count = sort_rows.varying(given.offsets, given.data, found)
    assert count == (differ if differ <= 8 else -1)
    assert found[: max(count, 0)].tolist() == places[: max(count, 0)]
    mixed = from_bytes([*keys, b"shorter"])
    assert sort_rows.varying(mixed.offsets, mixed.data, found) == -1
    ins = np.array(chance.sample(range(1000), 300), np.uint64)
    order = order_of(given, ins)
    assert order.tolist() == sorted(range(300), key=lambda i: (keys[i], ins[i]))
    taken = take_many(given, order)
    assert [taken.key_at(i) for i in range(300)] == [keys[i] for i in order]


def test_string_offsets_equal_those_of_arrow():
    chance = random.Random(5)
    letters = (b"\0a", b"\xff\x00", bytes(range(256)))
    for number in range(100):
        count = chance.choice((1, 2, 5, 100))
        sizes = [chance.choice((0, 1, 7, 8, 9, 16, 17)) for _ in range(count)]
        values = pa.array(
            [bytes(chance.choices(letters[number % 3], k=n)) for n in sizes], pa.binary()
        )
        part = values.slice(chance.randrange(count))
        stats = RunningStats(Column(ColumnId(1), "c", pa.binary()))
        stats.add(part)
        ends = pc.min_max(part)
        assert stats.rows().to_pylist() == [ends["min"].as_py(), ends["max"].as_py()] * 2
