"""Scans: projection, order, limits, pruning, columns read."""

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument
from nyala.common.expressions.bounds import KeyBounds
from nyala.common.expressions.predicate import And, Compare, Const, IsNull, Not, Prefix, evaluate
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.common.keys.encoding import encode_key
from nyala.common.schema import from_arrow
from nyala.tablet.files.columns import ColumnReader
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.rows import selection
from tests.unit.tablet.support.scan_support import A, K, Row, S, is_
from tests.unit.tablet.support.tablet_support import PAIR_KEY, Driver, numbered


@pytest.fixture
def driver(tmp_path):
    """Keys 0-99 and 100-199 on disk, 200-249 in memory; a is 0.. in each, s is s<k>."""
    driver = Driver(str(tmp_path / "t"))
    for start in (0, 100):
        driver.write(RowOp.INSERT, numbered(start, start + 100))
        driver.flush()
    driver.write(RowOp.INSERT, numbered(200, 250))
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
def test_projection_returns_requested_columns_in_requested_order(driver):
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


def test_scan_order_is_encoded_key_order_across_rowsets(driver):
    driver.write(RowOp.UPSERT, [{"k": k, "a": -1, "s": None} for k in (150, -3, 7, 300, 220)])
    keys = [r["k"] for r in driver.rows(ordered=True)]
    assert keys == [-3, *range(250), 300]
    assert [r["k"] for r in driver.rows(ordered=True, limit=9)] == [-3, *range(8)]


def test_scan_resumes_after_a_key(driver):
    driver.write(RowOp.DELETE, [{"k": 105}], ["k"])
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
def test_version_is_visible_from_its_timestamp_until_before_its_end(tmp_path, flushed):
    driver = Driver(str(tmp_path / "t"))
    one, two = (pa.record_batch({"k": pa.array(keys, pa.int64())}) for keys in ([1], [1, 2]))
    for value in range(3):
        driver.write(RowOp.UPSERT, [{"k": 1, "a": value, "s": None}])  # at 10, 20, 30
    driver.write(RowOp.DELETE, [{"k": 1}], ["k"])
    if flushed:
        driver.flush()
    view = driver.tablet.view()
    for at, expected in [(9, []), (10, [0]), (19, [0]), (20, [1]), (29, [1]), (39, [2]), (40, [])]:
        assert [r["a"] for r in driver.rows(at)] == expected
        assert view.count(at) == len(expected)
        for keys in (one, two):  # one key is looked up without kernels
            assert view.get(at, keys).column("a").to_pylist() == expected


def test_rowsets_excluded_by_predicate_are_not_read(driver, touched):
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


def test_key_range_reads_only_matching_part_of_sorted_rowset(driver, monkeypatch):
    view = driver.tablet.view()
    seen: list[tuple[int, int]] = []

    def noted(where, get, count):
        seen.append((get(K)[0].as_py(), count))
        return evaluate(where, get, count)

    monkeypatch.setattr(selection, "evaluate", noted)
    assert view.count(driver.now, And((is_(K, Sign.GE, 20), is_(K, Sign.LT, 25)))) == 5
    assert seen == [(20, 5), (200, 50)]  # the memory rowset is not sorted


@pytest.mark.row("A5")
def test_only_needed_columns_are_read(driver, touched):
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


def test_statistics_omit_nan_and_long_strings(tmp_path):
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
    driver.write(RowOp.INSERT, rows)
    driver.flush()
    d, e, s = driver.ids("d", "e", "s")
    stats = driver.disk_rowsets()[0].view().stats
    assert sorted(stats) == [0, e]
    assert (stats[e].minimum, stats[e].maximum) == (pa.scalar(1.0), pa.scalar(1.0))
    assert stats[e].has_nulls
    view = driver.tablet.view()
    assert view.count(driver.now, Compare(d, Sign.GE, pa.scalar(5.0))) == 1
    assert view.count(driver.now, Prefix(s, "zz")) == 1
    assert view.count(driver.now, IsNull(e)) == 1


def test_lookups_require_key_columns_only(tmp_path):
    driver = Driver(str(tmp_path / "t"), PAIR_KEY)
    driver.write(RowOp.INSERT, [{"host": "h", "n": 1, "a": 1, "b": b"z"}])
    view = driver.tablet.view()
    good = pa.RecordBatch.from_arrays(
        [pa.array([1, 1, None], pa.int32()), pa.array(["h", None, "h"])], names=["n", "host"]
    )
    assert view.get(driver.now, good, driver.ids("b")).to_pylist() == [{"b": b"z", "_row": 0}]
    wrong = [pa.record_batch(w) for w in ({"host": ["h"]}, {"host": ["h"], "n": [1]})]
    twice = [good.column("n"), good.column("host"), good.column("host")]
    for keys in (*wrong, pa.RecordBatch.from_arrays(twice, names=["n", "host", "host"])):
        with pytest.raises(InvalidArgument, match="needs the key columns"):
            view.get(driver.now, keys)
    none = good.slice(0, 0)
    assert view.get(driver.now, none).num_rows == 0
    assert Driver(str(tmp_path / "e"), PAIR_KEY).tablet.view().get(0, good).num_rows == 0


def test_change_feed_has_requested_columns_and_matches_the_described_row(driver):
    driver.write(RowOp.UPDATE, [{"k": 5, "a": 1000}, {"k": 6, "a": 0}], ["k", "a"])
    driver.write(RowOp.DELETE, [{"k": 7}, {"k": 99}], ["k"])
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
