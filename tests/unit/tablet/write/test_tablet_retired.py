"""A tablet whose range was dropped: its rows end at one time, in every state of storage."""

from dataclasses import replace
from typing import Any

import pytest

from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp, SchemaOp
from nyala.tablet.write import apply_schema
from tests.unit.tablet.support.alter_support import STAGES, bring
from tests.unit.tablet.support.tablet_support import Driver, numbered


@pytest.mark.parametrize("stage", STAGES)
def test_retired_tablet_is_readable_below_retirement_time_only(tmp_path, stage):
    driver = Driver(str(tmp_path / "t"))
    names = [c.name for c in driver.tablet.info.schema.columns]
    row = dict.fromkeys(names, None) | {names[0]: 1}
    driver.write(RowOp.UPSERT, [row])
    before = driver.now
    schema = replace(driver.tablet.info.schema, version=driver.tablet.info.schema.version + 1)
    op = SchemaOp(schema, "t", {}, schema.version, retire=True)
    entry = driver.entry(replicated_ops.encode_schema(op))
    driver.tablet.apply([entry])
    at = entry.stamp
    bring(driver, stage)
    view, info = driver.tablet.view(), driver.tablet.info
    assert (info.retired_at, info.ranges) == (at, ((schema.version, at),))
    assert [view.count(t) for t in (before, at - 1, at, at + 1)] == [1, 1, 0, 0]
    assert [sum(b.num_rows for b in view.scan(t)) for t in (at - 1, at)] == [1, 0]
    assert driver.tablet.rows == 0
    (batch,) = view.changes(before, at)
    assert (batch.column("_op").to_pylist(), batch.column("_timestamp").to_pylist()) == (
        ["delete"],
        [at],
    )
    assert list(view.changes(at, at + 1)) == []
    assert [info.newer_ranges(0, t) for t in (at - 1, at)] == [0, schema.version]
    assert info.newer_ranges(schema.version, at) == 0
    assert driver.write(RowOp.UPSERT, [row]) == [(0, replicated_ops.RANGE_DROPPED)]
    assert driver.tablet.view().count(driver.now) == 0


def altered(driver: Driver, **op: Any) -> int:
    """Apply an alteration that changes no column; return its stamp."""
    schema = driver.tablet.info.schema
    schema = replace(schema, version=schema.version + 1)
    entry = driver.entry(replicated_ops.encode_schema(SchemaOp(schema, "t", {}, **op)))
    driver.tablet.apply([entry])
    return entry.stamp


def test_alteration_after_retirement_does_not_move_the_end_of_the_rows(tmp_path):
    """An order that is sent again as a later version has the mark of the dropped range, too."""
    driver = Driver(str(tmp_path / "t"))
    driver.write(RowOp.INSERT, numbered(0, 2))
    at = altered(driver, ranges_version=1, retire=True)
    later = altered(driver, ranges_version=1, retire=True)
    assert (driver.tablet.info.retired_at, driver.tablet.info.ranges) == (at, ((1, at),))
    view = driver.tablet.view()
    assert [view.count(t) for t in (at - 1, at, later - 1, later)] == [2, 0, 0, 0]


def test_alterations_that_leave_the_ranges_alone_are_no_changes_of_ranges(tmp_path):
    """They would take the place of real ones, of which a tablet keeps a limited number."""
    driver = Driver(str(tmp_path / "t"))
    altered(driver)
    assert driver.tablet.info.ranges == ()
    second = altered(driver, ranges_version=2)
    altered(driver, ranges_version=2)
    assert driver.tablet.info.ranges == ((2, second),)
    fourth = altered(driver, ranges_version=4)
    altered(driver, ranges_version=4)
    assert driver.tablet.info.ranges == ((2, second), (4, fourth))


def test_oldest_changes_of_ranges_become_one_beyond_the_limit(tmp_path, monkeypatch):
    """A reader who knows an older version is sent to plan anew rather than given too few rows."""
    monkeypatch.setattr(apply_schema, "MAX_RANGES", 3)
    driver = Driver(str(tmp_path / "t"))
    stamps = [altered(driver, ranges_version=version) for version in range(1, 6)]
    info = driver.tablet.info
    assert info.ranges == ((3, stamps[0]), (4, stamps[3]), (5, stamps[4]))
    assert [info.newer_ranges(1, at) for at in (stamps[0] - 1, *stamps)] == [0, 3, 3, 3, 4, 5]
