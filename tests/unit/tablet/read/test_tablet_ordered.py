"""Ordered scans: merge of key windows of any rowsets, bounded memory, and limits."""

import random

import pyarrow as pa
import pytest

from nyala.common.expressions.bounds import KeyBounds
from nyala.common.expressions.predicate import Compare
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.common.keys.encoding import encode_key
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.read import ordered
from nyala.tablet.rows.gathering import gather_batches
from nyala.tablet.rows.rowset import Batches
from tests.unit.tablet.support.tablet_support import INT_KEY, PAIR_KEY, Driver, numbered

A = INT_KEY.column("a").id


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(ordered, "WINDOW_ROWS", 7)


def mixed(directory: str, seed: int) -> tuple[Driver, dict[int, dict[int, int]]]:
    """A tablet of a few disk rowsets and memory, and for each stamp the value of each key then."""
    rng, driver = random.Random(seed), Driver(directory)
    states: dict[int, dict[int, int]] = {}
    now: dict[int, int] = {}
    for step in range(60):
        keys = sorted({rng.randrange(40) for _ in range(rng.randrange(1, 12))})
        if rng.random() < 0.3:
            keys = [k for k in keys if k in now]
            driver.write(RowOp.DELETE, [{"k": k} for k in keys], ["k"])
            now = {k: v for k, v in now.items() if k not in keys}
        else:
            driver.write(RowOp.UPSERT, [{"k": k, "a": step, "s": None} for k in keys])
            now |= dict.fromkeys(keys, step)
        states[driver.now] = dict(now)
        if step % 13 == 12:
            driver.flush()
        if step == 40:
            driver.compact()
    return driver, states


@pytest.mark.row("A5")
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("seed", range(4))
def test_ordered_scan_of_random_rowsets_returns_rows_at_any_time_in_order(tmp_path, seed):
    driver, states = mixed(str(tmp_path / "t"), seed)
    for at, rows in states.items():
        expected = sorted(rows.items())
        assert [(r["k"], r["a"]) for r in driver.rows(at, ordered=True)] == expected
        assert driver.tablet.view().count(at) == len(rows)
    last = sorted(states[driver.now].items())
    for k in (-1, 0, 17, 39):
        after = encode_key([pa.scalar(k, pa.int64())], [pa.int64()])
        expected = [(n, v) for n, v in last if n > k]
        assert [
            (r["k"], r["a"]) for r in driver.rows(ordered=True, within=KeyBounds(after + b"\0"))
        ] == expected
    for limit in (1, 5, 6, 100):
        assert [(r["k"], r["a"]) for r in driver.rows(ordered=True, limit=limit)] == last[:limit]
    recent = Compare(A, Sign.GE, pa.scalar(40, pa.int64()))
    expected = [(k, v) for k, v in last if v >= 40]
    assert [(r["k"], r["a"]) for r in driver.rows(ordered=True, where=recent)] == expected


@pytest.mark.usefixtures("small_windows")
def test_ordered_scan_handles_key_with_more_versions_than_window(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    for value in range(20):
        driver.write(RowOp.UPSERT, [{"k": k, "a": value, "s": None} for k in (5, 6)])
    driver.write(RowOp.INSERT, numbered(0, 4))
    driver.flush()
    driver.write(RowOp.UPSERT, [{"k": 6, "a": 20, "s": None}, {"k": 9, "a": 1, "s": None}])
    assert [r["k"] for r in driver.rows(ordered=True)] == [0, 1, 2, 3, 5, 6, 9]
    assert [r["a"] for r in driver.rows(100, ordered=True)] == [9, 9]


def test_ordered_scan_merges_composite_string_keys_bytewise(tmp_path, small_windows):
    driver = Driver(str(tmp_path / "t"), PAIR_KEY)
    hosts = ["", "a", "a\0", "a\0b", "ab", "b"]
    rows = [{"host": h, "n": n, "a": 1, "s": None, "b": None} for h in hosts for n in (-1, 0, 7)]
    shuffled = random.Random(3).sample(rows, len(rows))
    for at in range(0, len(rows), 5):
        driver.write(RowOp.INSERT, shuffled[at : at + 5])
        if at != 10:
            driver.flush()
    found = [(r["host"], r["n"]) for r in driver.rows(ordered=True)]
    assert found == [(h, n) for h in hosts for n in (-1, 0, 7)]


def test_ordered_scan_memory_is_bounded(tmp_path, monkeypatch):
    driver = Driver(str(tmp_path / "t"))
    for start in range(0, 3000, 1000):
        driver.write(RowOp.INSERT, numbered(start, start + 1000))
        driver.flush()
    monkeypatch.setattr(ordered, "WINDOW_ROWS", 300)
    windows: list[int] = []

    def noted(chunks, which, rows, columns, names):
        windows.append(len(rows))
        return gather_batches(chunks, which, rows, columns, names)

    monkeypatch.setattr(ordered, "gather_batches", noted)
    scan = driver.tablet.view().scan(driver.now, ordered=True, batch_rows=50)
    assert next(scan).num_rows == 50
    assert len(windows) == 1  # later rows are not read before they are requested
    assert sum(b.num_rows for b in scan) == 2950
    assert max(windows) <= 300
    windows.clear()
    assert len(driver.rows(ordered=True, limit=10)) == 10
    assert len(windows) == 1


def test_memory_rows_above_a_key_are_selected_bytewise(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, numbered(0, 10))
    view = driver.tablet.view()
    assert isinstance(view.rowsets[0].chunks, Batches)
    key = encode_key([pa.scalar(7, pa.int64())], [pa.int64()])
    assert [
        r["k"] for b in view.scan(driver.now, within=KeyBounds(key + b"\0")) for r in b.to_pylist()
    ] == [8, 9]
