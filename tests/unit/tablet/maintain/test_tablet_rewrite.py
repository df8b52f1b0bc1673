"""Flush and compaction: the flush point, concurrent deletes, history; each bug of the storage prototype."""

import pytest

from nyala.common.errors import HistoryGone, Unavailable
from nyala.common.ids import OpId
from nyala.storage.flush_point import StoredFlushPoint
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.maintain.flush import MAX_DEL_FILES
from nyala.tablet.tablet import Tablet
from tests.unit.tablet.support.tablet_support import INT_KEY, Driver, numbered, payload


@pytest.fixture
def driver(tmp_path):
    return Driver(str(tmp_path / "t"))


def delete(driver, *keys):
    assert driver.write(RowOp.DELETE, [{"k": k} for k in keys], ["k"]) == []


def keys_of(driver, at=None):
    return sorted(r["k"] for r in driver.rows(at))


def test_compaction_does_not_advance_cut_past_memory(driver):
    for start in (0, 10):
        driver.write(RowOp.INSERT, numbered(start, start + 5))
        driver.flush()
    flushed = driver.tablet.flush_point
    driver.write(RowOp.INSERT, numbered(20, 25))
    delete(driver, 0)
    assert driver.compact()
    assert driver.tablet.flush_point == flushed
    driver.reopen()
    assert driver.tablet.flush_point == flushed
    assert keys_of(driver) == [*range(1, 5), *range(10, 15), *range(20, 25)]


def test_replay_ignores_delete_files_outside_manifest(driver):
    driver.write(RowOp.INSERT, numbered(0, 5))
    driver.flush()
    delete(driver, 1, 2)
    driver.tablet.prepare_flush(driver.flush_point())()  # built, and then the process crashes
    assert any(n.endswith(".del") for n in driver.files.list(driver.directory))
    tablet = Tablet.open(driver.files, driver.directory)
    assert tablet.view().count(driver.now) == 5
    [again] = tablet.apply(driver.log[1:])
    assert again == driver.results[-1]  # deleted, not "not found"
    assert tablet.view().count(driver.now) == 3


@pytest.mark.parametrize("first", ["restart", "flush"])
@pytest.mark.parametrize("work", ["flush", "compact"])
def test_deletes_during_rewrite_are_carried_over(driver, work, first):
    driver.write(RowOp.INSERT, numbered(0, 10))
    driver.flush()
    driver.write(RowOp.INSERT, numbered(10, 20))
    if work == "compact":
        driver.flush()
    delete(driver, 1, 11)
    flush_point = driver.flush_point()
    tablet = driver.tablet
    build = (
        tablet.prepare_flush(flush_point)
        if work == "flush"
        else tablet.prepare_compaction(force=True)
    )
    delete(driver, 2, 12)
    install = build()
    delete(driver, 3, 13)
    driver.write(RowOp.UPSERT, [{"k": 4, "a": 1, "s": "new"}, {"k": 14, "a": 1, "s": "new"}])
    install()
    expected = [k for k in range(20) if k not in (1, 2, 3, 11, 12, 13)]
    for _ in range(2):
        assert keys_of(driver) == expected
        assert keys_of(driver, flush_point.stamp) == [k for k in range(20) if k not in (1, 11)]
        assert [r["s"] for r in driver.rows() if r["k"] in (4, 14)] == ["new", "new"]
        (driver.reopen if first == "restart" else driver.flush)()
    delete(driver, 5, 15)
    driver.flush()
    driver.reopen()
    assert keys_of(driver) == [k for k in expected if k not in (5, 15)]


def test_concurrent_rewrites_are_refused(driver):
    for start in (0, 10):
        driver.write(RowOp.INSERT, numbered(start, start + 5))
        driver.flush()
    build = driver.tablet.prepare_compaction(force=True)
    driver.write(RowOp.INSERT, numbered(20, 25))
    assert driver.tablet.prepare_flush(driver.flush_point()) is None
    assert driver.tablet.prepare_compaction(force=True) is None
    build()()
    assert driver.flush()


def test_view_at_a_time_does_not_change_while_operations_are_applied(driver):
    driver.write(RowOp.INSERT, numbered(0, 1000))
    driver.flush()
    driver.write(RowOp.UPSERT, numbered(500, 1500))
    view, at = driver.tablet.view(), driver.now
    expected = driver.rows(at, ordered=True)
    scanning = view.scan(at, batch_rows=100)
    seen = next(scanning).to_pylist()
    delete(driver, *range(0, 1500, 3))
    driver.write(RowOp.UPSERT, numbered(1000, 4000))
    driver.flush()
    driver.compact(driver.now)
    seen += [r for b in scanning for r in b.to_pylist()]
    assert sorted(seen, key=lambda r: r["k"]) == expected
    assert view.count(at) == 1500
    assert [r for b in view.scan(at, ordered=True) for r in b.to_pylist()] == expected


def test_cut_stores_op_id_timestamp_and_replica_data(driver):
    assert driver.tablet.flush_point == StoredFlushPoint(OpId(0, 0), 0, b"")
    driver.write(RowOp.INSERT, numbered(0, 3))
    flush_point = StoredFlushPoint(OpId(3, 7), driver.now + 5, b"sessions")
    driver.tablet.prepare_flush(flush_point)()()
    assert driver.tablet.flush_point == flush_point
    assert Tablet.open(driver.files, driver.directory).flush_point == flush_point
    assert driver.tablet.prepare_flush(flush_point) is None
    later = StoredFlushPoint(
        OpId(3, 9), flush_point.stamp + 7, b"more"
    )  # entries that changed no row move the flush point too
    driver.tablet.prepare_flush(later)()()
    assert Tablet.open(driver.files, driver.directory).flush_point == later
    with pytest.raises(AssertionError, match="below what was applied"):
        driver.tablet.prepare_flush(StoredFlushPoint(OpId(3, 10), 1, b""))


def test_delete_files_of_a_rowset_stay_bounded(driver):
    driver.write(RowOp.INSERT, numbered(0, 40))
    driver.flush()
    for k in range(20):
        delete(driver, k)
        driver.flush()
        names = driver.files.list(driver.directory)
        assert sum(n.endswith(".del") for n in names) <= MAX_DEL_FILES
    driver.reopen()
    assert keys_of(driver) == list(range(20, 40))
    assert keys_of(driver, driver.log[5].stamp) == list(range(5, 40))


def test_compaction_with_horizon_removes_expired_history(driver):
    driver.write(RowOp.INSERT, numbered(0, 10))
    driver.flush()
    for value in range(5):
        driver.write(RowOp.UPSERT, [{"k": 1, "a": value, "s": "x"}])
        driver.flush()
    delete(driver, 2)
    driver.flush()
    horizon, now = driver.log[3].stamp, driver.now
    at_horizon = driver.rows(horizon, ordered=True)
    assert driver.compact(None)
    assert driver.tablet.horizon == 0
    assert len(driver.rows(10)) == 10
    assert driver.compact(horizon)
    assert not driver.compact(horizon)
    for _ in range(2):
        view = driver.tablet.view()
        assert driver.tablet.horizon == view.horizon == horizon
        assert driver.rows(horizon, ordered=True) == at_horizon
        assert len(driver.rows()) == 9
        assert [(d.rows, d.live) for d in driver.disk_rowsets()] == [(3, 0), (9, 9)]
        for read in (
            lambda v=view: v.scan(horizon - 1),
            lambda v=view: v.count(horizon - 1),
            lambda v=view: v.changes(horizon - 1, now),
            lambda v=view: v.get(horizon - 1, None),
        ):
            with pytest.raises(HistoryGone, match="history is not kept") as caught:
                read()
            assert caught.value.details == {"horizon": str(horizon)}
        feed = [r for b in view.changes(horizon, now, net=False) for r in b.to_pylist()]
        assert [(r["k"], r["_op"]) for r in feed] == [(1, "update"), (1, "update"), (2, "delete")]
        driver.reopen()


def test_compaction_may_remove_all_rows(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    driver.flush()
    delete(driver, 0, 1, 2)
    driver.flush()
    assert driver.compact(driver.now)
    assert driver.files.list(driver.directory) == ["MANIFEST"]
    driver.reopen()
    assert driver.rows() == []
    assert driver.write(RowOp.INSERT, numbered(0, 1)) == []


def test_rowsets_of_similar_size_are_compacted_without_force(driver):
    driver.write(RowOp.INSERT, numbered(0, 1000))
    driver.flush()
    for start in range(3):
        driver.write(RowOp.INSERT, numbered(2000 + start, 2001 + start))
        driver.flush()
        assert not driver.compact(force=False)
    driver.write(RowOp.INSERT, numbered(3000, 3001))
    driver.flush()
    assert driver.compact(force=False)
    assert sorted(d.rows for d in driver.disk_rowsets()) == [4, 1000]


def test_rowset_with_much_history_is_compacted_alone(driver):
    driver.write(RowOp.INSERT, numbered(0, 100))
    driver.flush()
    delete(driver, *range(30))
    driver.flush()
    assert not driver.compact(force=False)
    assert not driver.compact(driver.now - 1, force=False)
    assert driver.compact(driver.now, force=False)
    assert driver.disk_rowsets()[0].rows == 70


def test_replay_from_the_manifest_gives_the_same_results(driver):
    for n in range(12):
        driver.write(RowOp.INSERT, numbered(n, n + 3))
        delete(driver, n)
        if n % 4 == 1:
            driver.flush()
    tablet = Tablet.open(driver.files, driver.directory)
    after = tablet.flush_point.op.index
    assert 0 < after < len(driver.log)
    assert tablet.apply(driver.log[after:]) == driver.results[after:]


def test_closed_tablet_refuses_new_views_and_keeps_existing_ones(driver):
    """A reader after close is refused: an empty result would silently omit rows."""
    driver.write(RowOp.INSERT, numbered(0, 5))
    driver.flush()
    view = driver.tablet.view()
    driver.tablet.close()
    assert view.count(driver.now) == 5
    with pytest.raises(Unavailable, match="was closed"):
        driver.tablet.view()
    with pytest.raises(AssertionError):
        driver.tablet.apply([driver.entry(payload(INT_KEY, RowOp.INSERT, numbered(9, 10)))])
    assert Tablet.open(driver.files, driver.directory).view().count(driver.now) == 5


def test_tablet_reports_its_sizes(driver):
    assert driver.tablet.unflushed_bytes() == 0
    driver.write(RowOp.INSERT, numbered(0, 100))
    held = driver.tablet.unflushed_bytes()
    assert held > 100 * 16
    assert driver.tablet.data_bytes == held
    driver.flush()
    assert driver.tablet.unflushed_bytes() == 0
    directory = driver.directory
    names = [n for n in driver.files.list(directory) if n != "MANIFEST"]
    assert driver.tablet.data_bytes == sum(driver.files.size(f"{directory}/{n}") for n in names)
    delete(driver, 1)
    assert driver.tablet.unflushed_bytes() == 16
    assert replicated_ops.decode_result(driver.results[-1]) == (1, [])
