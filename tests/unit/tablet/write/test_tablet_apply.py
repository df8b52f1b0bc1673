"""Row operations: effects, failing rows with reasons, order within a batch."""

import datetime
import decimal
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.schema import from_arrow
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp, WriteOp
from nyala.tablet.tablet import Tablet
from nyala.tablet.write import row_checks
from tests.unit.tablet.support.tablet_support import (
    INT_KEY,
    PAIR_KEY,
    Driver,
    info,
    message,
    numbered,
    payload,
)


@pytest.fixture
def driver(tmp_path):
    return Driver(str(tmp_path / "t"))


@pytest.fixture
def pairs(tmp_path):
    return Driver(str(tmp_path / "p"), PAIR_KEY)


def row(k, a=None, s=None):
    return {"k": k, "a": a, "s": s}


@pytest.mark.parametrize(
    ("op", "present", "absent"),
    [
        (RowOp.INSERT, "already_present", "written"),
        (RowOp.INSERT_IGNORE, "ignored", "written"),
        (RowOp.UPSERT, "written", "written"),
        (RowOp.UPSERT_IGNORE, "written", "written"),
        (RowOp.UPDATE, "written", "not_found"),
        (RowOp.UPDATE_IGNORE, "written", "ignored"),
        (RowOp.DELETE, "deleted", "not_found"),
        (RowOp.DELETE_IGNORE, "deleted", "ignored"),
    ],
)
@pytest.mark.parametrize("flushed", [False, True])
def test_each_operation_has_documented_effect(driver, op, present, absent, flushed):
    driver.write(RowOp.INSERT, [row(1, 1, "old")])
    if flushed:
        driver.flush()
    expected = {1: row(1, 1, "old")}
    errors = []
    for k, outcome in ((1, present), (2, absent)):
        if outcome == "written":
            expected[k] = row(k, 9, "new")
        elif outcome == "deleted":
            expected.pop(k, None)
        elif outcome != "ignored":
            errors.append((k - 1, outcome))
    assert driver.write(op, [row(1, 9, "new"), row(2, 9, "new")]) == errors
    assert driver.rows(ordered=True) == list(expected.values())
    assert driver.tablet.rows == len(expected)


def test_results_count_rows_and_explain_errors(driver):
    driver.write(RowOp.INSERT, [row(1)])
    rows, errors = driver.write_full(RowOp.INSERT, [row(1), row(None), row(2), row(1)])
    assert rows == 1
    assert [(e.row, e.code) for e in errors] == [
        (0, "already_present"),
        (1, "null_key"),
        (3, "already_present"),
    ]
    assert errors[1].message == "key column 'k' is null"


def test_partial_columns_keep_explicit_null_sets_null(driver):
    driver.write(RowOp.INSERT, [row(1, 1, "one"), row(2, 2, "two")])
    driver.flush()
    driver.write(RowOp.UPSERT, [row(1, 10), row(3, 30)], ["a", "k"])
    driver.write(RowOp.UPDATE, [row(2, None)], ["k", "a"])
    assert driver.rows(ordered=True) == [row(1, 10, "one"), row(2, None, "two"), row(3, 30, None)]


def test_new_rows_get_defaults_and_require_values_without_default(pairs):
    key = {"host": "h", "n": 1}
    assert pairs.write(RowOp.INSERT, [key], ["host", "n"]) == [(0, "null_value")]
    assert pairs.write(RowOp.UPSERT, [key], ["host", "n"]) == [(0, "null_value")]
    assert pairs.write(RowOp.INSERT, [{**key, "a": None}], ["host", "n", "a"]) == [
        (0, "null_value")
    ]
    assert pairs.write(RowOp.INSERT, [{**key, "a": 1}], ["host", "n", "a"]) == []
    assert pairs.rows() == [{**key, "a": 1, "s": "none", "b": None}]
    assert pairs.write(RowOp.UPSERT, [{**key, "s": None}], ["host", "n", "s"]) == []
    assert pairs.rows() == [{**key, "a": 1, "s": None, "b": None}]
    assert pairs.write(RowOp.UPDATE, [{**key, "a": None}], ["host", "n", "a"]) == [
        (0, "null_value")
    ]
    assert pairs.write(RowOp.DELETE, [{**key, "a": None}], ["host", "n", "a"]) == []


def test_immutable_columns_are_set_once(pairs):
    def write(op, b, n=1, **kw):
        columns = ["host", "n", "a", "b"]
        return pairs.write(op, [{"host": "h", "n": n, "a": kw.get("a", 1), "b": b}], columns)

    assert write(RowOp.INSERT, b"x") == []
    assert write(RowOp.UPSERT, b"y", a=2) == [(0, "immutable")]
    assert write(RowOp.UPDATE, None, a=2) == [(0, "immutable")]
    assert pairs.rows()[0]["a"] == 1
    assert write(RowOp.UPSERT, b"x", a=3) == []  # no change to it
    assert write(RowOp.UPSERT_IGNORE, b"y", a=4) == []
    assert pairs.rows()[0]["a"] == 3
    assert write(RowOp.UPSERT_IGNORE, b"x", a=5) == []
    assert pairs.rows()[0]["a"] == 5
    assert write(RowOp.UPSERT_IGNORE, b"z", n=2) == []
    assert pairs.tablet.rows == 2
    _, [error] = pairs.write_full(
        RowOp.UPDATE, [{"host": "h", "n": 1, "b": b"q"}], ["host", "n", "b"]
    )
    assert error.message == "column 'b' is immutable, and its value would change"


def test_immutable_floats_compare_by_bits(tmp_path):
    schema = from_arrow(
        pa.schema([("k", pa.int32()), ("d", pa.float64()), ("f", pa.float32())]),
        ["k"],
        immutable=["d", "f"],
    )
    driver = Driver(str(tmp_path / "t"), schema)
    nan = float("nan")
    driver.write(RowOp.INSERT, [{"k": 1, "d": nan, "f": 0.0}])
    assert driver.write(RowOp.UPSERT, [{"k": 1, "d": nan, "f": 0.0}]) == []
    assert driver.write(RowOp.UPSERT, [{"k": 1, "d": nan, "f": -0.0}]) == [(0, "immutable")]
    assert driver.write(RowOp.UPSERT, [{"k": 1, "d": 1.0, "f": 0.0}]) == [(0, "immutable")]


def test_operations_on_one_key_take_effect_in_order(driver):
    driver.write(RowOp.INSERT, [row(1, 0, "kept")])
    driver.flush()
    steps = [
        {"_op": RowOp.DELETE, "k": 1},
        {"_op": RowOp.UPDATE, "k": 1, "a": 5},
        {"_op": RowOp.INSERT, "k": 1, "a": 6},
        {"_op": RowOp.INSERT, "k": 1, "a": 7},
        {"_op": RowOp.UPDATE, "k": 1, "a": 8},
        {"_op": RowOp.INSERT, "k": 2, "a": 1},
        {"_op": RowOp.DELETE, "k": 2},
        {"_op": RowOp.DELETE, "k": 2},
    ]
    errors = driver.write(RowOp.MIXED, steps, ["k", "a"])
    assert errors == [(1, "not_found"), (3, "already_present"), (7, "not_found")]
    assert driver.rows() == [row(1, 8, None)]  # re-inserted: columns that are not given are null
    changes = [r for b in driver.tablet.view().changes(10, 20, net=False) for r in b.to_pylist()]
    assert changes == [{**row(1, 8, None), "_op": "update", "_timestamp": 20}]


def test_row_that_is_written_again_after_its_delete_is_an_insert_in_the_feed(driver):
    driver.write(RowOp.UPSERT, [{"k": 1, "a": 1, "s": "t"}, {"k": 2, "a": 1, "s": "t"}])
    driver.write(RowOp.DELETE, [{"k": 1}], ["k"])
    driver.write(RowOp.UPSERT, [{"k": 1, "a": 2, "s": "t"}, {"k": 2, "a": 2, "s": "t"}])
    feed = driver.tablet.view().changes(0, driver.now, net=False)
    found = [(r["k"], r["_op"], r["a"]) for b in feed for r in b.to_pylist()]
    assert found == [
        (1, "insert", 1), (2, "insert", 1), (1, "delete", None), (1, "insert", 2), (2, "update", 2),
    ]  # fmt: skip


def test_version_with_empty_lifetime_is_not_stored(driver):
    driver.write(RowOp.UPSERT, [row(1, n) for n in range(1000)] + [row(2, 1)])
    driver.write(RowOp.MIXED, [{"_op": RowOp.INSERT, "k": 3}, {"_op": RowOp.DELETE, "k": 3}], ["k"])
    assert driver.tablet.store.mem.rows == 2
    assert driver.rows() == [row(1, 999), row(2, 1)]


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


def test_many_rows_of_one_key_are_applied_in_one_pass(driver):
    size = 10_000
    same, distinct = [row(7, n) for n in range(size)], [row(n, n) for n in range(size)]
    for columns in (["k", "a", "s"], ["k", "a"]):
        many = driver.entry(payload(INT_KEY, RowOp.UPSERT, distinct, columns))
        spread = calls(lambda entry=many: driver.tablet.apply([entry]))
        once = driver.entry(payload(INT_KEY, RowOp.UPSERT, same, columns))
        versions = driver.tablet.store.mem.rows
        assert calls(lambda entry=once: driver.tablet.apply([entry])) < 1.2 * spread
        assert driver.tablet.store.mem.rows == versions + 1


@pytest.mark.row("W11")
def test_all_or_nothing_rejects_whole_operation(driver):
    driver.write(RowOp.INSERT, [row(1, 1)])
    steps = [
        {"_op": RowOp.UPDATE, "k": 1, "a": 2},
        {"_op": RowOp.INSERT, "k": 2, "a": 2},
        {"_op": RowOp.DELETE, "k": 3},
    ]
    rows, errors = driver.write_full(RowOp.MIXED, steps, ["k", "a"], all_or_nothing=True)
    assert (rows, [(e.row, e.code) for e in errors]) == (0, [(2, "not_found")])
    assert driver.rows() == [row(1, 1)]
    assert driver.write(RowOp.MIXED, steps[:2], ["k", "a"], all_or_nothing=True) == []
    assert driver.rows(ordered=True) == [row(1, 2), row(2, 2)]


def test_rows_that_are_too_large_fail_alone(pairs):
    cell, key = MAX_CELL_BYTES, row_checks.MAX_KEY_BYTES
    rows = [
        {"host": "a", "n": 1, "a": 1, "s": "x" * cell},
        {"host": "b", "n": 1, "a": 1, "s": "x" * (cell + 1)},
        {"host": "c" * (key - 6), "n": 1, "a": 1},
        {"host": "d" * (key - 5), "n": 1, "a": 1},
    ]
    _, errors = pairs.write_full(RowOp.UPSERT, rows, ["host", "n", "a", "s"])
    assert [(e.row, e.code) for e in errors] == [(1, "too_large"), (3, "too_large")]
    limits = "a key, encoded, is at most 16384 bytes, a value 65536"
    assert errors[0].message == f"'s' is larger than allowed: {limits}"
    assert errors[1].message == f"the key is larger than allowed: {limits}"
    assert pairs.tablet.rows == 2


def test_row_operations_that_do_not_exist_fail_alone(driver):
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1, 2, 3, 4]), pa.array([0, 3, 15, None], pa.uint8())], names=["k", "_op"]
    )
    ids = tuple(driver.ids("k"))
    data = replicated_ops.encode(WriteOp(RowOp.MIXED, 0, ids, False, message(batch)))
    [result] = driver.tablet.apply([driver.entry(data)])
    rows, errors = replicated_ops.decode_result(result)
    assert rows == 1
    assert [(e.row, e.code) for e in errors] == [
        (0, "out_of_range"),
        (2, "out_of_range"),
        (3, "out_of_range"),
    ]


def test_empty_batch_is_accepted(driver):
    assert driver.write_full(RowOp.UPSERT, []) == (0, [])
    assert driver.rows() == []


def weak_hash(offsets, data, seed):
    """A hash with four values for all keys, all with the same upper half."""
    first = data[np.minimum(offsets[:-1], max(len(data) - 1, 0))] if len(data) else 0
    return (np.zeros(len(offsets) - 1, np.uint64) + np.uint64(7 << 32)) | np.uint64(3) & first


def test_keys_with_colliding_hashes_are_distinct(tmp_path):
    driver = Driver(str(tmp_path / "t"), PAIR_KEY, hash_keys=weak_hash)
    names = ["", "a", "aa", "b", "ba", "\0", "a\0b"]
    rows: list[dict[str, Any]] = [
        {"host": h, "n": n, "a": i, "s": h} for i, h in enumerate(names) for n in range(5)
    ]
    columns = ["host", "n", "a", "s"]
    for half in (rows[::2], rows[1::2]):
        assert driver.write(RowOp.INSERT, half, columns) == []
        assert driver.flush()
    assert driver.write(RowOp.INSERT, rows[:10], columns) == [
        (n, "already_present") for n in range(10)
    ]
    assert driver.write(RowOp.UPDATE, [{**r, "a": r["a"] + 100} for r in rows[::3]], columns) == []
    assert driver.write(RowOp.DELETE, rows[::4], ["host", "n"]) == []
    expected = {
        (r["host"], r["n"]): r["a"] + (0 if i % 3 else 100) for i, r in enumerate(rows) if i % 4
    }
    for step in (lambda: None, driver.flush, driver.compact, driver.reopen):
        step()
        assert {(r["host"], r["n"]): r["a"] for r in driver.rows()} == expected
        keys = pa.table(
            {"host": [r["host"] for r in rows], "n": pa.array([r["n"] for r in rows], pa.int32())}
        )
        found = driver.tablet.view().get(driver.now, keys.to_batches()[0]).to_pylist()
        assert {(r["host"], r["n"]): r["a"] for r in found} == expected
        net = [r for b in driver.tablet.view().changes(0, driver.now) for r in b.to_pylist()]
        assert {(r["host"], r["n"]): r["a"] for r in net} == expected


def test_index_of_growing_tablet_finds_every_key(driver):
    for start in range(0, 6000, 1500):
        assert driver.write(RowOp.INSERT, numbered(start, start + 1500)) == []
    assert len(driver.write(RowOp.INSERT, numbered(0, 6000))) == 6000
    batch = pa.record_batch({"k": pa.array(range(-5, 6005), pa.int64())})
    found = driver.tablet.view().get(driver.now, batch)
    assert found.column("k").to_pylist() == list(range(6000))
    assert found.column("_row").to_pylist() == list(range(5, 6005))


def all_types():
    utc = datetime.UTC
    return [
        ("bool", pa.bool_(), True),
        ("int8", pa.int8(), -128),
        ("int16", pa.int16(), 7),
        ("int32", pa.int32(), -7),
        ("int64", pa.int64(), 2**63 - 1),
        ("float", pa.float32(), 1.5),
        ("double", pa.float64(), -1e300),
        ("string", pa.string(), "añ\0x"),
        ("binary", pa.binary(), b"\xff\x00"),
        ("date", pa.date32(), datetime.date(1960, 2, 29)),
        ("ts", pa.timestamp("us"), datetime.datetime(1969, 1, 1, 0, 0, 0, 5)),
        ("tz", pa.timestamp("us", "UTC"), datetime.datetime(2030, 1, 1, tzinfo=utc)),
        ("decimal", pa.decimal128(18, 4), decimal.Decimal("-12345.6789")),
    ]


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_every_type_in_key_and_value_survives_memory_and_disk(tmp_path, compression):
    types = all_types()
    keys = [n for n, t, _ in types if t not in (pa.bool_(), pa.float32(), pa.float64())]
    fields = [(f"k_{n}", t) for n, t, _ in types if n in keys] + [(n, t) for n, t, _ in types]
    schema = from_arrow(
        pa.schema(fields), [f"k_{n}" for n in keys], defaults={n: v for n, _, v in types}
    )
    driver = Driver(str(tmp_path / "t"), schema, compression=compression)
    full = {f"k_{n}": v for n, _, v in types if n in keys} | {n: v for n, _, v in types}
    empty = {**full, "k_int8": 5} | {n: None for n, _, _ in types}
    bare = {n: v for n, v in full.items() if n.startswith("k_")} | {"k_int8": 6}
    driver.write(RowOp.INSERT, [full, empty])
    driver.write(RowOp.INSERT, [bare], list(bare))
    expected = [full, empty, {**full, **bare}]
    for step in (lambda: None, driver.flush, driver.reopen):
        step()
        assert driver.rows(ordered=True) == expected


def test_unknown_compression_is_refused(tmp_path, driver):
    with pytest.raises(InvalidArgument, match="compression='brotli'"):
        Tablet.create(driver.files, str(tmp_path / "x"), info(compression="brotli"))
    assert not (tmp_path / "x").exists()


def test_timestamps_must_increase(driver):
    driver.write(RowOp.INSERT, [row(1)])
    late = driver.entry(payload(INT_KEY, RowOp.INSERT, [row(2)]), step=0)
    with pytest.raises(AssertionError, match="stamped 10 after 10"):
        driver.tablet.apply([late])


def rows_of(batches):
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("seed", range(6))
def test_grouped_apply_equals_single_apply_in_results_and_scans(tmp_path, seed):
    chance = np.random.default_rng(seed)
    kinds = [op for op in RowOp if op is not RowOp.MIXED]
    one, other = (Driver(str(tmp_path / n), INT_KEY) for n in "ab")
    results: dict[str, list[bytes]] = {"one": [], "other": []}
    for _ in range(4):
        entries = []
        for _ in range(30):
            size = int(chance.choice([1, 1, 3, 40]))
            rows = [
                {"k": int(chance.integers(0, 30)), "a": int(chance.integers(0, 9)), "s": "x"}
                for _ in range(size)
            ]
            op = kinds[int(chance.integers(0, len(kinds)))]
            columns = [["k", "a"], ["k", "a", "s"]][int(chance.integers(0, 2))]
            entries.append(one.entry(payload(INT_KEY, op, rows, columns)))
        other.log = list(one.log)
        for entry in entries:
            results["one"] += one.tablet.apply([entry])
        cut = int(chance.integers(1, len(entries)))
        results["other"] += other.tablet.apply(entries[:cut]) + other.tablet.apply(entries[cut:])
        now = one.now
        for read in (
            lambda t, now=now: t.view().scan(now, batch_rows=7),
            lambda t, now=now: t.view().scan(now // 2, ordered=True),
            lambda t, now=now: t.view().changes(now // 3, now, net=False),
        ):
            assert rows_of(read(one.tablet)) == rows_of(read(other.tablet))
        assert one.flush()
        assert other.flush()
    assert results["one"] == results["other"]
    for name in one.files.list(one.directory):
        assert one.files.read(f"{one.directory}/{name}") == other.files.read(
            f"{other.directory}/{name}"
        )


def test_key_chain_continues_without_live_version_in_memory(driver):
    driver.write(RowOp.INSERT, [row(1, 1)])
    first = driver.now
    driver.write(RowOp.DELETE, [{"k": 1}])
    driver.write(RowOp.INSERT, [row(1, 2)])
    driver.write(RowOp.UPSERT, [row(1, 3)])
    keys = pa.record_batch([pa.array([1], driver.schema.columns[0].type)], ["k"])
    for at, value in ((first, 1), (first + 10, None), (first + 20, 2), (driver.now, 3)):
        found = driver.tablet.view().get(at, keys).to_pylist()
        assert [r["a"] for r in found] == ([] if value is None else [value]), at
