"""Scans: projection, order, limits and batch sizes; what is pruned, and which columns are read at all."""

import sys
import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.bounds import KeyBounds
from nyala.common.errors import InvalidArgument
from nyala.common.keys import encode_key
from nyala.common.predicate import And, Compare, Const, IsNull, Not, Prefix
from nyala.common.predicate import Op as Sign
from nyala.common.schema import from_arrow
from nyala.tablet import columns as blocks
from nyala.tablet import ops
from nyala.tablet.columns import BLOCK_BYTES, BLOCK_ROWS, ColumnReader, block_ends
from nyala.tablet.emit import emit
from nyala.tablet.ops import Op, WriteOp
from tests.unit.tablet.tablet_support import INT_KEY, PAIR_KEY, Driver, message, numbered, payload

Row = dict[str, Any]
K, A, S = (c.id for c in INT_KEY.columns)


def is_(column, sign, value):
    kind = INT_KEY.by_id[column].type
    return Compare(column, sign, pa.scalar(value, kind))


@pytest.fixture
def driver(tmp_path):
    """Keys 0-99 and 100-199 on disk, 200-249 in memory; a is 0.. in each, s is s<k>."""
    driver = Driver(str(tmp_path / "t"))
    for start in (0, 100):
        driver.write(Op.INSERT, numbered(start, start + 100))
        driver.flush()
    driver.write(Op.INSERT, numbered(200, 250))
    return driver


@pytest.fixture
def touched(monkeypatch):
    """The (file, column) pairs that are read."""
    found: list[tuple[str, int]] = []
    original = ColumnReader.column

    def column(self, chunk, column):
        found.append((self._path.rpartition("/")[2], column.id))
        return original(self, chunk, column)

    monkeypatch.setattr(ColumnReader, "column", column)
    return found


@pytest.mark.row("A5")
def test_columns_are_those_asked_for_in_that_order(driver):
    view, now = driver.tablet.view(), driver.now
    [batch] = view.scan(now, [S, K], limit=1)
    assert batch.schema == pa.schema(
        [("s", pa.string()), pa.field("k", pa.int64(), nullable=False)]
    )
    assert batch.to_pylist() == [{"s": "s0", "k": 0}]
    batches = list(view.scan(now, []))
    assert sum(b.num_rows for b in batches) == 250
    assert batches[0].num_columns == 0
    for wrong in ([K, 77], [K, K]):
        with pytest.raises(InvalidArgument, match="column ids"):
            view.scan(now, wrong)


def test_order_is_that_of_the_encoded_key_across_rowsets(driver):
    driver.write(Op.UPSERT, [{"k": k, "a": -1, "s": None} for k in (150, -3, 7, 300, 220)])
    keys = [r["k"] for r in driver.rows(ordered=True)]
    assert keys == [-3, *range(250), 300]
    assert [r["k"] for r in driver.rows(ordered=True, limit=9)] == [-3, *range(8)]


def test_going_on_after_a_key(driver):
    driver.write(Op.DELETE, [{"k": 105}], ["k"])
    for k in (-1, 0, 98, 104, 105, 230, 249):
        key = encode_key([pa.scalar(k, pa.int64())], [pa.int64()])
        expected = [n for n in range(250) if n > k and n != 105]
        assert [
            r["k"] for r in driver.rows(ordered=True, within=KeyBounds(key + b"\0"))
        ] == expected
        assert sorted(r["k"] for r in driver.rows(within=KeyBounds(key + b"\0"))) == expected
        assert [
            r["k"] for r in driver.rows(ordered=True, within=KeyBounds(key + b"\0"), limit=3)
        ] == expected[:3]


@pytest.mark.parametrize("flushed", [False, True])
def test_a_version_is_seen_from_its_stamp_until_right_before_its_end(tmp_path, flushed):
    driver = Driver(str(tmp_path / "t"))
    key = pa.record_batch({"k": pa.array([1], pa.int64())})
    for value in range(3):
        driver.write(Op.UPSERT, [{"k": 1, "a": value, "s": None}])  # at 10, 20, 30
    driver.write(Op.DELETE, [{"k": 1}], ["k"])
    if flushed:
        driver.flush()
    view = driver.tablet.view()
    for at, expected in [(9, []), (10, [0]), (19, [0]), (20, [1]), (29, [1]), (39, [2]), (40, [])]:
        assert [r["a"] for r in driver.rows(at)] == expected
        assert view.count(at) == len(expected)
        assert view.get(at, key).column("a").to_pylist() == expected


def test_rowsets_outside_the_predicate_are_not_read(driver, touched):
    now, view = driver.now, driver.tablet.view()
    low = "00000001"
    assert {n[:8] for n in driver.files.list(driver.directory)} >= {low, "MANIFEST"}
    assert view.count(now, is_(K, Sign.GE, 100)) == 150
    assert {n for n, _ in touched}
    assert low + ".dat" not in {n for n, _ in touched}
    touched.clear()
    assert view.count(now, is_(A, Sign.GT, 99)) == 0  # statistics of a column outside the key
    assert view.count(now, IsNull(S)) == 0
    assert view.count(now, Const(False)) == 0
    assert view.count(now, And((is_(K, Sign.LT, 5), is_(K, Sign.GT, 7)))) == 0
    assert touched == []
    assert view.count(now, Not(IsNull(S))) == 250


def test_a_key_range_reads_only_its_part_of_a_rowset(driver):
    view = driver.tablet.view()
    seen = []
    from nyala.tablet import selection

    original = selection._matches

    def noted(rowset, schema, chunk, offset, count, where):
        seen.append((offset, count))
        return original(rowset, schema, chunk, offset, count, where)

    try:
        selection._matches = noted
        found = view.count(driver.now, And((is_(K, Sign.GE, 20), is_(K, Sign.LT, 25))))
    finally:
        selection._matches = original
    assert found == 5
    assert seen == [(20, 5), (0, 50)]  # the memory rowset is not sorted


@pytest.mark.row("A5")
def test_only_the_columns_needed_are_read(driver, touched):
    now, view = driver.now, driver.tablet.view()
    assert view.count(now) == 250
    assert next(view.scan(now, [], limit=3)).num_rows == 3
    assert touched == []
    assert view.count(now, is_(A, Sign.EQ, 5)) == 3
    assert {c for _, c in touched} == {A}
    touched.clear()
    assert list(view.scan(now, [S], Prefix(S, "nothing"))) == []
    assert list(view.scan(now, [S, A], is_(A, Sign.EQ, 1000))) == []
    assert touched == []
    found = list(view.scan(now, [S], And((is_(A, Sign.GE, 98), Prefix(S, "s19")))))
    assert [r["s"] for b in found for r in b.to_pylist()] == ["s198", "s199"]


def test_statistics_leave_nan_and_long_strings_alone(tmp_path):
    schema = from_arrow(
        pa.schema(
            [("k", pa.int64()), ("d", pa.float64()), ("e", pa.float64()), ("s", pa.string())]
        ),
        ["k"],
    )
    driver = Driver(str(tmp_path / "t"), schema)
    rows: list[Row] = [
        {"k": 1, "d": float("nan"), "e": 1.0, "s": "z" * 5000},
        {"k": 2, "d": 7.0, "e": None, "s": "a"},
    ]
    driver.write(Op.INSERT, rows)
    driver.flush()
    d, e, s = driver.ids("d", "e", "s")
    stats = driver.tablet._store.disks[0].view().stats
    assert sorted(stats) == [0, e]
    assert (stats[e].minimum, stats[e].maximum) == (pa.scalar(1.0), pa.scalar(1.0))
    assert stats[e].has_nulls
    view = driver.tablet.view()
    assert view.count(driver.now, Compare(d, Sign.GE, pa.scalar(5.0))) == 1
    assert view.count(driver.now, Prefix(s, "zz")) == 1
    assert view.count(driver.now, IsNull(e)) == 1


@pytest.mark.row("A5")
@pytest.mark.parametrize("seed", range(4))
def test_batches_have_the_size_asked_for(seed):
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


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_blocks_are_small_and_what_does_not_shrink_is_read_in_place(
    tmp_path, monkeypatch, compression
):
    monkeypatch.setattr(blocks, "COMPRESSED_ROWS", 64)
    driver = Driver(str(tmp_path / "t"), compression=compression)
    rng = np.random.default_rng(1)
    values = rng.integers(-(1 << 62), 1 << 62, 1000).tolist()
    rows = [{"k": k, "a": v, "s": "same" * 9} for k, v in enumerate(values)]
    driver.write(Op.INSERT, rows)
    driver.flush()
    [rowset] = driver.tablet.view()._rowsets
    chunks = rowset.chunks
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


def test_blocks_end_by_rows_and_by_bytes():
    assert block_ends([], 0) == []
    assert block_ends([], BLOCK_ROWS * 2 + 5) == [BLOCK_ROWS, 2 * BLOCK_ROWS, 2 * BLOCK_ROWS + 5]
    sizes = np.full(10, BLOCK_BYTES // 3, np.int64)
    assert block_ends([sizes], 10) == [3, 6, 9, 10]
    sizes[4] = BLOCK_BYTES * 2
    assert block_ends([sizes], 10) == [3, 4, 5, 8, 10]


def test_a_rowset_of_several_blocks_reads_whole(tmp_path, monkeypatch):
    from nyala.tablet import columns

    monkeypatch.setattr(columns, "BLOCK_ROWS", 16)
    driver = Driver(str(tmp_path / "t"))
    driver.write(Op.INSERT, numbered(0, 100)[::-1])
    driver.write(Op.UPSERT, numbered(0, 100)[::7])
    driver.flush()
    assert len(driver.tablet._store.disks[0].view().chunks.starts) == 9
    driver.write(Op.UPDATE, [{"k": k, "a": 7} for k in range(99, 0, -9)], ["k", "a"])
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


def test_look_ups_take_the_key_columns_only(tmp_path):
    driver = Driver(str(tmp_path / "t"), PAIR_KEY)
    driver.write(Op.INSERT, [{"host": "h", "n": 1, "a": 1, "b": b"z"}])
    view = driver.tablet.view()
    good = pa.RecordBatch.from_arrays(
        [pa.array([1, 1, None], pa.int32()), pa.array(["h", None, "h"])], names=["n", "host"]
    )
    assert view.get(driver.now, good, driver.ids("b")).to_pylist() == [{"b": b"z", "_row": 0}]
    for wrong in ({"host": ["h"]}, {"host": ["h"], "n": [1]}):
        with pytest.raises(InvalidArgument, match="needs the key columns"):
            view.get(driver.now, pa.record_batch(wrong))
    none = good.slice(0, 0)
    assert view.get(driver.now, none).num_rows == 0
    assert Driver(str(tmp_path / "e"), PAIR_KEY).tablet.view().get(0, good).num_rows == 0


def test_changes_carry_the_columns_asked_for_and_match_by_the_row_meant(driver):
    driver.write(Op.UPDATE, [{"k": 5, "a": 1000}, {"k": 6, "a": 0}], ["k", "a"])
    driver.write(Op.DELETE, [{"k": 7}, {"k": 99}], ["k"])
    view = driver.tablet.view()
    since = driver.log[2].stamp
    found = [r for b in view.changes(since, driver.now, columns=[S, K]) for r in b.to_pylist()]
    assert [(r["k"], r["s"], r["_op"]) for r in found] == [
        (5, "s5", "update"), (6, "s6", "update"), (7, None, "delete"), (99, None, "delete"),
    ]  # fmt: skip
    assert list(found[0]) == ["s", "k", "_op", "_timestamp"]
    where = is_(A, Sign.GE, 99)  # the row written, or the one that ended
    found = [r for b in view.changes(since, driver.now, where=where) for r in b.to_pylist()]
    assert [(r["k"], r["a"]) for r in found] == [(5, 1000), (99, None)]
    assert list(view.changes(driver.now, driver.now)) == []
    assert list(view.changes(driver.now, since)) == []


def wide_payload(op, rows, columns=("k", "a", "s")):
    keys = np.arange(rows)
    arrays = {"k": pa.array(keys), "a": pa.array(keys), "s": pa.array(np.char.mod("%08d", keys))}
    batch = pa.record_batch({n: arrays[n] for n in columns})
    return ops.encode(
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
    """How many calls each kind of work costs with so many rows."""
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

    write("insert", Op.INSERT, "k", "a", "s")
    for place in ("memory", "disk"):
        view, now = driver.tablet.view(), driver.now
        for name, read in reads.items():
            found[f"{name} in {place}"] = calls(lambda r=read, v=view, t=now: r(v, t))
        if place == "memory":
            found["flush"] = calls(driver.flush)
    write("partial update", Op.UPDATE, "k", "a")
    write("insert that fails", Op.INSERT, "k", "a", "s")
    write("delete", Op.DELETE, "k")
    return found


def test_no_python_runs_per_row(tmp_path):
    """100,000 rows cost less than twice the calls of 1,000: apply, flush, scan, get, changes."""
    few, many = (
        calls_by_kind(Driver(str(tmp_path / f"t{size}")), size) for size in (1_000, 100_000)
    )
    assert len(few) == 19
    assert {n: (few[n], many[n]) for n in few if many[n] >= 2 * few[n]} == {}


def test_readers_in_other_threads_see_their_snapshot(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    driver.write(Op.INSERT, numbered(0, 200))
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
            driver.write(Op.UPSERT, [*numbered(0, 200), *fresh])
            published[0] = (driver.tablet.view(), driver.now)
            if n % 50 == 49:
                driver.flush()
    finally:
        done.set()
        reader.join()
    assert wrong == []


def test_one_row_batches_are_merged_into_chunks(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    for k in range(200):
        driver.tablet.apply([driver.entry(payload(INT_KEY, Op.INSERT, numbered(k, k + 1)))])
    assert len(driver.tablet._store.mem.view().chunks.starts) - 1 < 40
    assert [r["k"] for r in driver.rows()] == list(range(200))
