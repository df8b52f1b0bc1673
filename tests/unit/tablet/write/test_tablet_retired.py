"""A tablet whose range was dropped: its rows end at one time, in every state of storage."""

from dataclasses import replace

import pytest

from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp, SchemaOp
from tests.unit.tablet.support.alter_support import STAGES, bring
from tests.unit.tablet.support.tablet_support import Driver


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
