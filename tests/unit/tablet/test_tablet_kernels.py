"""Kernels are compiled once, when they are imported, and never again for other array kinds."""

import numpy as np

from nyala.tablet import decisions, gather_kernels, kernels, messages, sort_kernels
from nyala.tablet.ops import Op
from tests.unit.tablet.tablet_support import INT_KEY, Driver, numbered, payload


def dispatchers():
    every = [kernels, decisions, gather_kernels, messages, sort_kernels]
    found = [(f"{m.__name__}.{n}", v) for m in every for n, v in vars(m).items()]
    return {n: v for n, v in found if hasattr(v, "py_func")}


def test_nothing_is_compiled_at_run_time(tmp_path):
    assert kernels.warm() == len(dispatchers()) > 20
    driver = Driver(str(tmp_path / "t"))
    for start in (0, 3):
        driver.write(Op.UPSERT, numbered(start, start + 5))  # writable arrays
        few = [driver.entry(payload(INT_KEY, Op.UPSERT, numbered(k, k + 1))) for k in (0, 1)]
        driver.tablet.apply(few)
        driver.flush()  # and then mapped, read-only ones
    driver.compact()
    assert len(driver.rows(ordered=True)) == 8
    assert {n: len(d.signatures) for n, d in dispatchers().items() if len(d.signatures) != 1} == {}


def test_a_slot_holds_the_largest_row():
    slots, hashes = np.zeros(4, np.uint64), np.zeros(1, np.uint64)
    hashes[0] = 0xABCDEF0123456789
    kernels.link(slots, hashes, np.zeros(1, np.int64), np.full(1, -1, np.int64))
    assert slots.tolist() == [0xABCDEF01 << 32 | 1, 0, 0, 0]  # 0x23456789 * 4 >> 32
    assert (kernels.MAX_ROWS + 1) >> 32 == 0
