"""Choice of rowsets to merge: number per key and rewritten rows are bounded; history is stored apart."""

import random

import numpy as np
import pyarrow as pa
import pytest

from nyala.common.keys.encoding import encode_keys
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.kernels import live_versions
from nyala.tablet.maintain.compaction import (
    ENDED,
    GARBAGE,
    MIN_ROWSETS,
    SMALL_ROWS,
    Rowset,
    choose,
    depth,
    score,
)
from nyala.tablet.maintain.maintenance import Figures
from tests.unit.tablet.support.tablet_support import INT_KEY, Driver, numbered, payload


def rowset(number, rows, keys=(0, 255), ended=0, garbage=0):
    return Rowset(number, rows, ended, garbage, bytes([keys[0]]), bytes([keys[1]]))


@pytest.mark.row("A7")
def test_disjoint_rowsets_are_compacted_only_if_small():
    big = [rowset(n, SMALL_ROWS, (10 * n, 10 * n + 9)) for n in range(20)]
    assert choose(big, force=False) == set()
    assert depth(big) == 1
    small = [rowset(n, SMALL_ROWS - 1, (10 * n, 10 * n + 9)) for n in range(MIN_ROWSETS)]
    assert choose(small, force=False) == set(range(MIN_ROWSETS))
    assert choose(small[1:], force=False) == set()


def test_keys_with_most_overlapping_rowsets_are_compacted_first():
    left = [rowset(n, SMALL_ROWS, (0, 9)) for n in range(MIN_ROWSETS)]
    right = [rowset(10 + n, SMALL_ROWS, (20, 29)) for n in range(MIN_ROWSETS + 1)]
    assert choose([*left, *right], force=False) == {r.number for r in right}
    assert depth([*left, *right]) == MIN_ROWSETS + 1


@pytest.mark.parametrize("seed", range(2))
def test_overlap_and_write_amplification_grow_logarithmically(seed):
    """Simulate three hundred flushes of random keys without files."""
    chance = random.Random(seed)
    rowsets, written, deepest, flushed = [], 0, 0, 0
    for number in range(300):
        rows = chance.randrange(SMALL_ROWS, 2 * SMALL_ROWS)
        ends = sorted((chance.randrange(256), chance.randrange(256)))
        rowsets.append(rowset(number, rows, ends if chance.random() < 0.5 else (0, 255)))
        flushed += rows
        while picked := choose(rowsets, force=False):
            merged = [r for r in rowsets if r.number in picked]
            total = sum(r.rows for r in merged)
            least, greatest = min(r.least for r in merged), max(r.greatest for r in merged)
            rowsets = [r for r in rowsets if r.number not in picked]
            rowsets.append(Rowset(10_000 + written, total, 0, 0, least, greatest))
            written += total
        deepest = max(deepest, depth(rowsets))
    assert deepest <= 10
    assert 1 + written / flushed <= 8


def test_expired_history_is_compacted_first_then_mostly_ended_rowsets():
    first = rowset(1, 100, ended=100, garbage=30)
    second = rowset(2, 100, ended=int(ENDED * 100) + 1)
    assert choose([rowset(0, 100), first, second], force=False) == {1}
    assert choose([rowset(0, 100), second], force=False) == {2}
    assert choose([rowset(0, 100), rowset(1, 100, ended=100)], force=False) == set()
    assert choose([rowset(0, 100), rowset(1, 100, ended=100)], force=True) == set()
    assert choose([rowset(0, 100, ended=1)], force=True) == {0}


def test_compaction_score_is_rowsets_and_history_removed_per_byte_written():
    mib = 1 << 20
    four = [Rowset(n, 100, 0, 0, b"a", b"z", mib) for n in range(4)]
    assert (
        score(four, {0, 1, 2, 3}) == 3 / 5
    )  # three rowsets fewer; 4 MiB written, and one for the rest
    assert score(four, set()) == 0
    history = [Rowset(9, 100, 100, 50, b"a", b"z", mib)]
    assert score([*four, *history], {9}) == MIN_ROWSETS * 0.5 / 2
    mostly_ended = [Rowset(9, 100, 75, 0, b"a", b"z", 0)]
    assert score(mostly_ended, {9}) == MIN_ROWSETS * 0.75


def test_compaction_statistics_equal_rowset_versions(tmp_path):
    """Compute from all versions, and from their statistics, at every horizon."""
    driver = Driver(str(tmp_path / "t"))
    stamps = []
    for n in range(6):
        driver.write(RowOp.UPSERT, numbered(0, 20, s=f"{n}"))
        stamps.append(driver.now)
    driver.flush()
    driver.write(RowOp.UPSERT, numbered(0, 10, s="later"))  # ends versions above the cut
    [disk] = driver.tablet.store.disks
    flush_point, ends = driver.tablet.flush_point.stamp, disk.end_stamps.ends
    for horizon in [None, 0, 1, *stamps, driver.now, driver.now + 1]:
        below = min(horizon or 0, flush_point)
        ended, garbage = (
            int(((ends > 0) & (ends <= flush_point)).sum()),
            int(((ends > 0) & (ends <= below)).sum()),
        )
        seen = Rowset.of(disk, horizon, flush_point)
        assert (seen.ended, seen.garbage) == (
            ended,
            garbage if garbage > GARBAGE * 120 else seen.garbage,
        )
        assert (seen.garbage > GARBAGE * 120) == (garbage > GARBAGE * 120)
    assert driver.tablet.compaction_score(None) == pytest.approx(MIN_ROWSETS * 100 / 120, rel=0.02)
    driver.flush()
    assert driver.compact(force=False)
    assert driver.tablet.compaction_score(None) == 0
    assert driver.tablet.compaction_score(driver.now) > 0  # the history may be removed


def test_history_is_stored_separately_and_not_read_by_writes(tmp_path, monkeypatch):
    driver = Driver(str(tmp_path / "t"))
    for n in range(5):
        driver.write(RowOp.UPSERT, numbered(0, 20, s=f"{n}"))
    driver.flush()
    assert driver.compact(force=False)
    assert [(d.rows, d.live) for d in driver.disk_rowsets()] == [(80, 0), (20, 20)]
    size = sum(d.file_bytes for d in driver.disk_rowsets())
    figures = driver.tablet.figures()
    assert figures == Figures(2, 1, 100, 80, 100, 100, size, 0, figures.history_s)
    assert figures.amplification == 2
    assert not driver.compact(force=False)
    assert not driver.compact()
    store = driver.tablet.store
    keys = encode_keys([pa.array([3, 4])], [pa.int64()])
    located = store.locate(keys, store.hashes(keys), np.arange(2))
    assert located.which.tolist() == [1, 1]  # memory, live rows, history
    asked = []
    real = live_versions.find_live

    def find_live(places, skip, *given):
        asked.extend(places[skip == 0, live_versions.ROWS].tolist())
        return real(places, skip, *given)

    monkeypatch.setattr(live_versions, "find_live", find_live)
    store.locate(keys, store.hashes(keys), np.arange(2))
    assert asked == [0, 20]


def test_versions_are_readable_from_every_rowset_kind(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    expected = {}
    for n in range(6):
        driver.write(RowOp.UPSERT, [{"k": k, "a": n, "s": f"{k}.{n}"} for k in range(n, 10)])
        expected[driver.now] = driver.rows(ordered=True)
        if n % 2:
            driver.flush()
            driver.compact()
    for at, rows in expected.items():
        assert driver.rows(at, ordered=True) == rows
    driver.reopen()
    for at, rows in expected.items():
        assert driver.rows(at, ordered=True) == rows


def test_versions_of_one_key_in_a_flush_are_ordered(tmp_path):
    driver = Driver(str(tmp_path / "t"))
    writes = [numbered(0, 20, s=f"{n}") for n in range(50)]
    driver.tablet.apply([driver.entry(payload(INT_KEY, RowOp.UPSERT, rows)) for rows in writes])
    driver.flush()
    [disk] = driver.disk_rowsets()
    view = disk.view()
    words = view.keys.words()
    assert words is not None
    assert words.tolist() == sorted(words.tolist())
    assert view.ins.tolist() == [e.stamp for e in driver.log] * 20
    assert [len(driver.rows(e.stamp)) for e in driver.log] == [20] * 50
