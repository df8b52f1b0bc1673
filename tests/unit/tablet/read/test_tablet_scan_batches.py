"""Sizes of batches and blocks, rows merged into chunks, readers beside writers, no Python per row."""

import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.expressions.predicate import And
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.tablet.files import columns as blocks
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.columns import BLOCK_BYTES, BLOCK_ROWS, block_ends
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.read.emit import emit
from tests.unit.tablet.support.scan_support import A, K, S, is_
from tests.unit.tablet.support.tablet_support import INT_KEY, Driver, message, numbered, payload


@pytest.mark.row("A5")
@pytest.mark.parametrize("seed", range(4))
def test_batches_have_requested_size(seed):
    chance = np.random.default_rng(seed)
    batches = []
    for _ in range(40):
        sizes = chance.choice(
            [0, 3, 50, 2000], int(chance.integers(0, 60)), p=[0.2, 0.6, 0.15, 0.05]
        )
        batches.append(pa.record_batch({"s": pa.array(["x" * int(n) for n in sizes], pa.string())}))
    whole = pa.Table.from_batches(batches)
    for rows, size in ((1, 10**6), (7, 10**6), (1000, 400), (64, 5000), (10**6, 10**6)):
        out = list(emit(batches, batch_rows=rows, batch_bytes=size))
        assert pa.Table.from_batches(out).equals(whole)
        assert all(0 < b.num_rows <= rows for b in out)
        assert all(b.nbytes <= size or b.num_rows == 1 for b in out)
        for limit in (0, 1, 33, whole.num_rows, whole.num_rows + 1):
            some = list(emit(batches, batch_rows=rows, batch_bytes=size, limit=limit))
            assert sum(b.num_rows for b in some) == min(limit, whole.num_rows)


class Counted:
    """A batch of a size that counts how often its bytes are counted."""

    num_rows = 10

    def __init__(self) -> None:
        self.asked = 0

    @property
    def nbytes(self) -> int:
        self.asked += 1
        return 100


def test_bytes_of_a_batch_are_counted_once():
    batches = [Counted() for _ in range(5)]
    assert list(emit(batches, batch_rows=10, batch_bytes=100)) == batches
    assert [b.asked for b in batches] == [1] * 5


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_blocks_shrink_and_incompressible_blocks_are_read_in_place(
    tmp_path, monkeypatch, compression
):
    monkeypatch.setattr(blocks, "COMPRESSED_ROWS", 64)
    driver = Driver(str(tmp_path / "t"), compression=compression)
    rng = np.random.default_rng(1)
    values = rng.integers(-(1 << 62), 1 << 62, 1000).tolist()
    rows = [{"k": k, "a": v, "s": "same" * 9} for k, v in enumerate(values)]
    driver.write(RowOp.INSERT, rows)
    driver.flush()
    [rowset] = driver.disk_rowsets()
    chunks = rowset.view().chunks
    assert chunks.starts.tolist() == [*range(0, 1000, 64), 1000]
    used = pa.total_allocated_bytes()
    noise = chunks.column(3, INT_KEY.column("a"))
    assert pa.total_allocated_bytes() == used  # it lies in the mapped file
    assert noise.to_pylist() == values[192:256]
    text = chunks.column(3, INT_KEY.column("s"))
    assert pa.total_allocated_bytes() > used
    assert text.to_pylist() == ["same" * 9] * 64
    assert driver.rows(ordered=True) == rows
    assert driver.rows(where=is_(K, Sign.EQ, 700)) == [rows[700]]


def test_blocks_are_bounded_by_rows_and_bytes():
    assert block_ends([], 0) == []
    assert block_ends([], BLOCK_ROWS * 2 + 5) == [BLOCK_ROWS, 2 * BLOCK_ROWS, 2 * BLOCK_ROWS + 5]
    sizes = np.full(10, BLOCK_BYTES // 3, np.int64)
    assert block_ends([sizes], 10) == [3, 6, 9, 10]
    sizes[4] = BLOCK_BYTES * 2
    assert block_ends([sizes], 10) == [3, 4, 5, 8, 10]


def test_multi_block_rowset_is_read_completely(tmp_path, monkeypatch):
    from nyala.tablet.files import columns

    monkeypatch.setattr(columns, "BLOCK_ROWS", 16)
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, numbered(0, 100)[::-1])
    driver.write(RowOp.UPSERT, numbered(0, 100)[::7])
    driver.flush()
    assert len(driver.disk_rowsets()[0].view().chunks.starts) == 9
    driver.write(RowOp.UPDATE, [{"k": k, "a": 7} for k in range(99, 0, -9)], ["k", "a"])
    assert [r["k"] for r in driver.rows(ordered=True)] == list(range(100))
    assert all(r["s"] == f"s{r['k']}" for r in driver.rows())
    where = And((is_(K, Sign.GE, 30), is_(K, Sign.LT, 71)))
    assert [r["k"] for r in driver.rows(ordered=True, where=where)] == list(range(30, 71))
    batch = pa.record_batch({"k": pa.array([99, 3, 50, 51], pa.int64())})
    assert driver.tablet.view().get(driver.now, batch, [S]).column("s").to_pylist() == [
        "s99",
        "s3",
        "s50",
        "s51",
    ]


def wide_payload(op, rows, columns=("k", "a", "s")):
    keys = np.arange(rows)
    arrays = {"k": pa.array(keys), "a": pa.array(keys), "s": pa.array(np.char.mod("%08d", keys))}
    batch = pa.record_batch({n: arrays[n] for n in columns})
    return replicated_ops.encode(
        WriteOp(op, 0, tuple(INT_KEY.column(n).id for n in columns), False, message(batch))
    )


def calls(function):
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def calls_by_kind(driver, size):
    """Return the number of Python calls of each kind of work with this many rows."""
    found = {}
    limits = {"batch_rows": 100_000, "batch_bytes": 16 << 20}
    wanted = pa.record_batch({"k": pa.array(np.arange(size))})
    where = is_(A, Sign.GE, size // 2)
    reads = {
        "scan": lambda v, t: list(v.scan(t, **limits)),
        "where": lambda v, t: list(v.scan(t, [S], where, **limits)),
        "ordered": lambda v, t: list(v.scan(t, ordered=True, **limits)),
        "count": lambda v, t: v.count(t),
        "get": lambda v, t: v.get(t, wanted),
        "net": lambda v, t: list(v.changes(0, t, **limits)),
        "by version": lambda v, t: list(v.changes(0, t, net=False, **limits)),
    }

    def write(name, op, *columns):
        entry = driver.entry(wide_payload(op, size, columns))
        found[name] = calls(lambda: driver.tablet.apply([entry]))

    write("insert", RowOp.INSERT, "k", "a", "s")
    for place in ("memory", "disk"):
        view, now = driver.tablet.view(), driver.now
        for name, read in reads.items():
            found[f"{name} in {place}"] = calls(lambda r=read, v=view, t=now: r(v, t))
        if place == "memory":
            found["flush"] = calls(driver.flush)
    write("partial update", RowOp.UPDATE, "k", "a")
    write("insert that fails", RowOp.INSERT, "k", "a", "s")
    write("delete", RowOp.DELETE, "k")
    return found


def test_scan_runs_no_python_code_per_row(tmp_path):
    """100,000 rows cost less than twice the calls of 1,000: apply, flush, scan, get, changes."""
    few, many = (
        calls_by_kind(Driver(str(tmp_path / f"t{size}")), size) for size in (1_000, 100_000)
    )
    assert len(few) == 19
    assert {n: (few[n], many[n]) for n in few if many[n] >= 2 * few[n]} == {}


def test_concurrent_readers_see_their_snapshot(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, numbered(0, 200))
    wrong: list[object] = []
    done = threading.Event()
    wanted = pa.record_batch({"k": pa.array(range(200), pa.int64())})

    def read() -> None:
        while not done.is_set():
            view, at = published[0]
            expected = list(range(200))
            found = view.get(at, wanted).column("k").to_pylist()
            scanned = sorted(r["k"] for b in view.scan(at, [K]) for r in b.to_pylist())
            if found != expected or scanned[:200] != expected:
                wrong.append((at, found, scanned))
                return

    published = [(driver.tablet.view(), driver.now)]
    reader = threading.Thread(target=read)
    reader.start()
    try:
        for n in range(150):
            fresh = numbered(1000 + 40 * n, 1040 + 40 * n)
            driver.write(RowOp.UPSERT, [*numbered(0, 200), *fresh])
            published[0] = (driver.tablet.view(), driver.now)
            if n % 50 == 49:
                driver.flush()
    finally:
        done.set()
        reader.join()
    assert wrong == []


def test_single_row_batches_are_combined_into_chunks(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    for k in range(200):
        driver.tablet.apply([driver.entry(payload(INT_KEY, RowOp.INSERT, numbered(k, k + 1)))])
    assert len(driver.tablet.store.mem.view().chunks.starts) - 1 < 40
    assert [r["k"] for r in driver.rows()] == list(range(200))
