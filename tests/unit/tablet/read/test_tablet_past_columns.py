"""Columns that were dropped are read at times before the drop, as long as these can be read."""

from dataclasses import replace

import pyarrow as pa
import pytest

from nyala.common.alteration import AddColumn, DropColumn, alter
from nyala.common.errors import Corrupt, HistoryGone, InvalidArgument
from nyala.common.expressions.predicate import Compare, CompareOp
from nyala.storage.sections import Sections
from nyala.tablet.files import dropped_columns, manifest
from nyala.tablet.files.file_kind import FileKind
from nyala.tablet.files.replicated_ops import RowOp
from tests.unit.tablet.support.alter_support import STAGES, bring
from tests.unit.tablet.support.tablet_support import numbered


def values(driver, at, column, **how):
    view = driver.tablet.view().at_time(at)
    return [
        v for b in view.scan(at, [column], ordered=True, **how) for v in b.column(0).to_pylist()
    ]


def manifest_of(driver):
    return driver.files.read(f"{driver.directory}/{manifest.NAME}")


def tags(driver, magic):
    return Sections(memoryview(manifest_of(driver)), "m", magic).tags


@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("before", STAGES)
def test_dropped_values_are_read_at_times_before_the_drop(driver, before, after):
    driver.write(RowOp.INSERT, numbered(0, 3))
    bring(driver, before)
    old = driver.schema.column("s").id
    driver.write(RowOp.UPSERT, [{"k": 1, "s": "new"}], ["k", "s"])
    at = driver.now
    driver.alter(DropColumn("s"), AddColumn("s", pa.string()))
    driver.write(RowOp.UPSERT, [{"k": 0, "s": "other"}, {"k": 4, "s": "other"}], ["k", "s"])
    bring(driver, after)
    assert values(driver, at, old) == ["s0", "new", "s2"]
    assert values(driver, at + 9, old, where=Compare(old, CompareOp.GE, pa.scalar("s"))) == [
        "s0", "s2",
    ]  # fmt: skip
    assert values(driver, driver.now, driver.schema.column("s").id) == [
        "other", None, None, "other",
    ]  # fmt: skip
    with pytest.raises(InvalidArgument, match=rf"\[{old}\] are not in schema version 1"):
        values(driver, at + 10, old)  # the drop's own time


def test_values_go_once_a_compaction_may_remove_history_before_the_drop(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    driver.flush()
    driver.write(RowOp.INSERT, numbered(3, 5))
    old, at = driver.schema.column("s").id, driver.now
    driver.alter(DropColumn("s"))
    dropped = driver.now
    driver.flush()
    assert driver.compact(dropped - 1)
    assert values(driver, at, old) == ["s0", "s1", "s2", "s3", "s4"]
    assert driver.tablet.horizon < at
    driver.write(RowOp.INSERT, [{"k": 9}], ["k"])
    driver.flush()
    assert driver.compact(dropped)
    assert driver.tablet.horizon == dropped
    with pytest.raises(HistoryGone, match=str(dropped)):
        values(driver, at, old)
    [rowset] = driver.disk_rowsets()
    assert rowset.view().chunks.lacks(old)
    driver.write(RowOp.INSERT, [{"k": 10}], ["k"])
    driver.flush()
    assert driver.tablet.info.dropped == ()
    assert tags(driver, FileKind.MANIFEST) == [1, 2, 3]
    assert manifest.decode(manifest_of(driver), "m").info.columns_from == dropped


def test_rewrites_of_later_rows_have_no_dropped_columns(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    driver.alter(DropColumn("s"))
    driver.flush()
    for key in (10, 11):
        driver.write(RowOp.INSERT, [{"k": key}], ["k"])
        driver.flush()
    [dropped] = driver.tablet.info.dropped
    old = dropped.column.id
    assert [r.view().chunks.lacks(old) for r in driver.disk_rowsets()] == [False, True, True]


def test_manifest_with_dropped_columns_is_refused_by_a_release_without_them(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    driver.flush()
    assert tags(driver, FileKind.MANIFEST) == [1, 2]
    driver.alter(DropColumn("s"))
    driver.flush()
    for magic in (FileKind.MANIFEST, FileKind.MANIFEST_2):
        with pytest.raises(Corrupt, match="magic"):
            tags(driver, magic)
    assert tags(driver, FileKind.MANIFEST_3) == [1, 2, 3, 5]
    assert manifest.decode(manifest_of(driver), "m").info == driver.tablet.info


def test_dropped_columns_without_read_default_do_not_decode(driver):
    driver.alter(DropColumn("s"))
    [dropped] = driver.tablet.info.dropped
    bad = replace(dropped, column=replace(dropped.column, read_default=None))
    with pytest.raises(Corrupt, match="read default"):
        dropped_columns.unpack(dropped_columns.pack([bad]))
    with pytest.raises(Corrupt, match="do not decode"):
        dropped_columns.unpack(b"\xc1")


def test_column_that_the_tablet_never_had_has_its_read_default(driver):
    driver.write(RowOp.INSERT, numbered(0, 2))
    at = driver.now
    between = alter(driver.schema, [AddColumn("n", pa.int64(), default=7)])
    driver.schema = alter(between, [DropColumn("n")])
    driver.apply_schema(driver.schema)
    missing = between.column("n")
    found = driver.tablet.view().at_time(at, [missing]).scan(at, [missing.id])
    assert [v for b in found for v in b.column(0).to_pylist()] == [7, 7]
    with pytest.raises(InvalidArgument, match="are not in schema"):
        driver.tablet.view().at_time(at).scan(at, [missing.id])


def test_definition_of_a_reader_does_not_replace_that_of_the_tablet(driver):
    """Neither for a column of now, nor for one whose values are gone, nor for one to come."""
    driver.write(RowOp.INSERT, numbered(0, 2))
    at, schema = driver.now, driver.schema
    driver.alter(DropColumn("s"))
    given = [replace(c, read_default=pa.scalar(None, c.type)) for c in schema.columns]
    view = driver.tablet.view().at_time(driver.now, given)
    assert view.schema == driver.schema
    later = replace(given[1], id=driver.schema.next_column_id)
    assert driver.tablet.view().at_time(at, [later]).schema.columns[-1].id == given[2].id
