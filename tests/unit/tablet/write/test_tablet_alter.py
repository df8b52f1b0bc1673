"""Tables altered with data: old rows, old files and old operations are read by column id."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.alteration import AddColumn, DropColumn, RenameColumn, SetDefault
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import And, Compare, IsNull, Not, Predicate
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.tablet.files.columns import ColumnReader
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from tests.unit.tablet.support.alter_support import STAGES, bring, by_key
from tests.unit.tablet.support.tablet_support import (
    PAIR_KEY,
    Driver,
    numbered,
    payload,
    table_bytes,
)


@pytest.mark.row("A14")
@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("before", STAGES)
def test_older_rows_have_default_given_when_column_was_added(driver, before, after):
    driver.write(RowOp.INSERT, [{"k": 1, "a": 1, "s": "x"}, {"k": 2, "a": 2, "s": "y"}])
    bring(driver, before)
    driver.alter(AddColumn("n", pa.int32(), default=7), AddColumn("o", pa.string()))
    driver.write(RowOp.INSERT, [{"k": 3}], ["k"])
    driver.alter(SetDefault("n", 8), SetDefault("o", "new"))
    driver.write(RowOp.INSERT, [{"k": 4}], ["k"])
    driver.write(RowOp.UPSERT, [{"k": 1, "a": 5}], ["k", "a"])
    bring(driver, after)
    assert by_key(driver) == {
        1: {"a": 5, "s": "x", "n": 7, "o": None},
        2: {"a": 2, "s": "y", "n": 7, "o": None},
        3: {"a": None, "s": None, "n": 7, "o": None},
        4: {"a": None, "s": None, "n": 8, "o": "new"},
    }


@pytest.mark.row("A14")
@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("before", STAGES)
def test_dropped_column_is_invisible_and_its_name_reusable(driver, before, after):
    driver.write(RowOp.INSERT, numbered(0, 3))
    bring(driver, before)
    dropped = driver.schema.column("s").id
    driver.alter(DropColumn("s"), RenameColumn("a", "b"), RenameColumn("k", "key"))
    driver.alter(AddColumn("s", pa.int8()), RenameColumn("b", "a"))
    driver.write(RowOp.UPSERT, [{"key": 1, "s": 5}], ["key", "s"])
    bring(driver, after)
    assert driver.schema.column("s").id > dropped
    rows = driver.rows(ordered=True)
    assert rows == [
        {"key": 0, "a": 0, "s": None}, {"key": 1, "a": 1, "s": 5}, {"key": 2, "a": 2, "s": None},
    ]  # fmt: skip


def test_operation_of_older_schema_is_applied_under_schema_at_its_index(driver):
    old = driver.schema
    driver.write(RowOp.INSERT, numbered(0, 2))
    driver.alter(
        DropColumn("s"), AddColumn("n", pa.int64(), nullable=False, default=7), SetDefault("a", 9)
    )
    driver.alter(SetDefault("n", 8))
    both = [{"k": 0, "a": 5, "s": "ignored"}, {"k": 2, "s": "ignored"}]
    data = payload(old, RowOp.UPSERT, both[:1]), payload(old, RowOp.UPSERT, both[1:], ["k", "s"])
    driver.tablet.apply([driver.entry(d) for d in data])
    expected: dict[int, dict[str, Any]] = {
        0: {"a": 5, "n": 7},
        1: {"a": 1, "n": 7},
        2: {"a": 9, "n": 8},
    }
    assert by_key(driver) == expected
    driver.reopen()
    assert by_key(driver) == expected
    driver.flush()
    driver.tablet.apply([driver.entry(payload(old, RowOp.UPDATE, both))])
    driver.reopen()
    expected[2] = {"a": None, "n": 8}
    assert by_key(driver) == expected


def test_compaction_between_cut_and_drop_keeps_columns_for_replay(tmp_path):
    """The result of an operation depends on an immutable column that is dropped right after it."""
    driver = Driver(str(tmp_path / "t"), PAIR_KEY)
    row = {"host": "h", "n": 1, "a": 1, "b": b"first"}
    for n in (1, 2):
        driver.write(RowOp.INSERT, [{**row, "n": n}], ["host", "n", "a", "b"])
        driver.flush()
    changed = [{**row, "n": 2, "a": 2, "b": b"other"}, {**row, "a": 2}]
    assert driver.write(RowOp.UPDATE, changed, ["host", "n", "a", "b"]) == [(0, "immutable")]
    driver.alter(DropColumn("b"), AddColumn("x", pa.int8(), default=1))
    assert driver.compact()
    before = driver.rows()
    driver.tablet = Tablet.open(driver.files, driver.directory)
    after = driver.tablet.flush_point.op.index
    assert driver.tablet.info.schema == PAIR_KEY
    assert driver.tablet.apply(driver.log[after:]) == driver.results[after:]
    assert driver.rows() == before


def test_grouped_apply_around_alterations_equals_single_apply(tmp_path):
    one, other = (Driver(str(tmp_path / n)) for n in "ab")
    one.write(RowOp.INSERT, numbered(0, 9))
    one.alter(DropColumn("s"), AddColumn("n", pa.int8(), default=3))
    one.write(RowOp.UPSERT, [{"k": 2, "n": 4}, {"k": 10}], ["k", "n"])
    one.alter(SetDefault("n", 5), RenameColumn("a", "b"))
    one.write(RowOp.MIXED, [{"k": 3, "_op": RowOp.DELETE}, {"k": 11, "_op": RowOp.INSERT}], ["k"])
    assert other.tablet.apply(one.log) == one.results
    assert other.tablet.info == one.tablet.info
    expected = table_bytes(one.tablet.view().scan(one.now, ordered=True))
    assert table_bytes(other.tablet.view().scan(one.now, ordered=True)) == expected
    other.log = one.log
    other.reopen()
    assert table_bytes(other.tablet.view().scan(one.now, ordered=True)) == expected


def test_view_keeps_its_schema(driver):
    driver.write(RowOp.INSERT, numbered(0, 5))
    driver.flush()
    driver.write(RowOp.UPSERT, [{"k": 1, "s": "new"}], ["k", "s"])
    view, at, old = driver.tablet.view(), driver.now, driver.schema
    expected = table_bytes(view.scan(at, ordered=True))
    driver.alter(DropColumn("s"), RenameColumn("a", "b"), AddColumn("n", pa.int64()))
    running = view.scan(at, ordered=True)
    driver.write(RowOp.DELETE, [{"k": 2}], ["k"])
    for _ in range(2):
        driver.flush()
        driver.compact(driver.now)
        assert view.schema == old
        assert table_bytes(view.scan(at, ordered=True)) == expected
    assert table_bytes(running) == expected
    key = pa.record_batch([pa.array([1])], ["k"])
    assert view.get(at, key).to_pylist() == [{"k": 1, "a": 1, "s": "new", "_row": 0}]
    dropped = old.column("s").id
    with pytest.raises(InvalidArgument, match=rf"\[{dropped}\] are not in schema version 1"):
        driver.tablet.view().scan(driver.now, [dropped])


@pytest.mark.parametrize("stage", STAGES)
def test_reads_of_all_kinds_through_a_later_schema(driver, stage):
    driver.write(RowOp.INSERT, numbered(0, 4))
    t1 = driver.now
    bring(driver, stage)
    driver.alter(AddColumn("n", pa.int32(), default=7), DropColumn("s"), RenameColumn("a", "b"))
    driver.write(RowOp.UPSERT, [{"k": 1, "n": 9}, {"k": 5, "n": None}], ["k", "n"])
    driver.write(RowOp.DELETE, [{"k": 0}], ["k"])
    t3 = driver.now
    bring(driver, stage)
    past: list[dict[str, Any]] = [{"k": k, "b": k, "n": 7} for k in range(4)]
    now: list[dict[str, Any]] = [
        {**past[1], "n": 9},
        past[2],
        past[3],
        {"k": 5, "b": None, "n": None},
    ]
    assert driver.rows(t1, ordered=True) == past
    assert driver.rows(ordered=True) == now
    view = driver.tablet.view()
    n, b = driver.ids("n", "b")
    seven, nine = (pa.scalar(v, pa.int32()) for v in (7, 9))
    wheres: dict[Predicate, list[dict[str, Any]]] = {
        Compare(n, Sign.EQ, seven): past[2:],
        Compare(n, Sign.GE, nine): now[:1],
        Compare(n, Sign.LT, seven): [],
        IsNull(n): now[3:],
        Not(IsNull(n)): now[:3],
        And((Compare(n, Sign.LE, nine), Compare(b, Sign.GT, pa.scalar(2)))): past[3:],
    }
    for where, expected in wheres.items():
        assert driver.rows(ordered=True, where=where) == expected, where
        assert driver.rows(ordered=True, where=where, columns=[n]) == [
            {"n": r["n"]} for r in expected
        ]
        assert view.count(t3, where) == len(expected), where
    keys = pa.record_batch([pa.array([3, 0, 5, 2])], ["k"])
    assert view.get(t3, keys, [n, b]).to_pylist() == [
        {"n": 7, "b": 3, "_row": 0}, {"n": None, "b": None, "_row": 2}, {"n": 7, "b": 2, "_row": 3},
    ]  # fmt: skip
    changes = [r for batch in view.changes(0, t3, net=False) for r in batch.to_pylist()]
    assert [(r["_op"], r["k"], r["b"], r["n"]) for r in changes] == [
        *(("insert", k, k, 7) for k in range(4)),
        ("update", 1, 1, 9),
        ("insert", 5, None, None),
        ("delete", 0, None, None),
    ]
    net = [r for b in view.changes(t1, t3, where=Compare(n, Sign.EQ, nine)) for r in b.to_pylist()]
    assert [(r["_op"], r["k"], r["n"]) for r in net] == [("insert", 1, 9)]


def test_rows_without_added_column_are_pruned_by_its_default(driver, monkeypatch):
    driver.write(RowOp.INSERT, numbered(0, 9))
    driver.flush()
    driver.alter(
        AddColumn("n", pa.int32(), default=7),
        AddColumn("o", pa.int32()),
        AddColumn("f", pa.float64(), default=float("nan")),
        AddColumn("b", pa.bool_(), default=True),
        SetDefault("n", 9),
    )
    driver.write(RowOp.INSERT, [{"k": 20, "n": 8, "o": 1, "f": 1.0, "b": False}], list("knofb"))
    driver.flush()
    looked: list[str] = []
    original = ColumnReader.column

    def column(self, chunk, column):
        looked.append(column.name)
        return original(self, chunk, column)

    monkeypatch.setattr(ColumnReader, "column", column)

    def found(name, sign, value):
        looked.clear()
        column = driver.schema.column(name)
        where = (
            IsNull(column.id)
            if sign is None
            else Compare(column.id, sign, pa.scalar(value, column.type))
        )
        count = driver.tablet.view().count(driver.now, where)
        return count, len(looked)

    assert found("n", Sign.EQ, 7) == (9, 1)
    assert found("n", Sign.EQ, 8) == (1, 1)
    assert found("n", Sign.GT, 8) == (0, 0)
    assert found("n", Sign.LE, 8) == (10, 2)
    assert found("n", Sign.NE, 7) == (1, 2)
    assert found("o", None, None) == (9, 1)
    assert found("o", Sign.LT, 5) == (1, 1)
    assert found("n", None, None) == (0, 0)
    assert found("f", Sign.GE, 0.0) == (1, 2), "NaN is not used for pruning"
    assert found("b", Sign.EQ, True)[0] == 9


@pytest.mark.row("A14")
def test_altered_compression_applies_to_new_files_and_old_ones_stay_readable(driver):
    def compress(chosen: str) -> None:
        driver.schema = replace(driver.schema, version=driver.schema.version + 1)
        assert driver.apply_schema(driver.schema, compression=chosen) == (1, [])

    def bytes_of_new_file(start: int) -> int:
        assert driver.write(RowOp.INSERT, texts(start, start + 1000)) == []
        assert driver.flush()
        return int(driver.disk_rowsets()[-1].file_bytes)

    def texts(start: int, stop: int) -> list[dict[str, Any]]:
        return [{**row, "a": 7} for row in numbered(start, stop, s="x" * 40)]

    plain = bytes_of_new_file(0)
    compress("zstd")
    assert bytes_of_new_file(1000) < plain / 2
    compress("none")
    assert bytes_of_new_file(2000) > plain / 2
    compress("lz4")
    assert bytes_of_new_file(3000) < plain / 2
    driver.reopen()
    assert driver.rows(ordered=True) == texts(0, 4000)
    assert driver.compact()
    assert sum(r.file_bytes for r in driver.disk_rowsets()) < 2 * plain, "a merge compresses all"
    assert driver.rows(ordered=True) == texts(0, 4000)


@pytest.mark.parametrize("after", STAGES)
def test_time_of_the_last_change_of_columns_is_kept(driver, after):
    driver.write(RowOp.INSERT, numbered(0, 3))
    assert driver.tablet.info.columns_from == 0
    driver.alter(SetDefault("a", 1))
    bring(driver, after)
    assert driver.tablet.info.columns_from == 0
    driver.alter(RenameColumn("a", "b"))
    renamed = driver.now
    driver.alter(SetDefault("b", 2))
    bring(driver, after)
    assert driver.tablet.info.columns_from == renamed
    driver.alter(AddColumn("n", pa.int8()))
    bring(driver, after)
    assert driver.tablet.info.columns_from == driver.now > renamed
