"""Tables altered while they hold data: old rows, old files and old operations are read by column id."""

import pyarrow as pa
import pytest

from nyala.common.alteration import (
    AddColumn,
    AllowNulls,
    DropColumn,
    RenameColumn,
    SetDefault,
    alter,
)
from nyala.common.predicate import Compare, IsNull
from nyala.common.predicate import Op as Sign
from nyala.tablet.ops import Op
from tests.unit.tablet.tablet_support import INT_KEY, Driver, numbered, payload

STAGES = ["memory", "flushed", "merged", "reopened", "replayed"]


@pytest.fixture
def driver(tmp_path):
    return Driver(str(tmp_path / "t"))


def bring(driver: Driver, stage: str) -> None:
    """Let what was applied lie where the stage says."""
    if stage == "replayed":
        driver.reopen()
    elif stage != "memory":
        assert driver.flush()
        if stage == "merged":
            assert driver.compact() or len(driver.tablet._store.disks) == 1
        elif stage == "reopened":
            driver.reopen()


def by_key(driver: Driver, at=None, **kw):
    return {r["k"]: {n: v for n, v in r.items() if n != "k"} for r in driver.rows(at, **kw)}


@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("before", STAGES)
def test_older_rows_keep_the_default_that_a_column_was_added_with(driver, before, after):
    driver.write(Op.INSERT, [{"k": 1, "a": 1, "s": "x"}, {"k": 2, "a": 2, "s": "y"}])
    bring(driver, before)
    driver.alter(AddColumn("n", pa.int32(), default=7), AddColumn("o", pa.string()))
    driver.write(Op.INSERT, [{"k": 3}], ["k"])
    driver.alter(SetDefault("n", 8), SetDefault("o", "new"))
    driver.write(Op.INSERT, [{"k": 4}], ["k"])
    driver.write(Op.UPSERT, [{"k": 1, "a": 5}], ["k", "a"])
    bring(driver, after)
    assert by_key(driver) == {
        1: {"a": 5, "s": "x", "n": 7, "o": None},
        2: {"a": 2, "s": "y", "n": 7, "o": None},
        3: {"a": None, "s": None, "n": 7, "o": None},
        4: {"a": None, "s": None, "n": 8, "o": "new"},
    }


@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("before", STAGES)
def test_a_dropped_column_is_gone_and_its_name_means_another_one(driver, before, after):
    driver.write(Op.INSERT, numbered(0, 3))
    bring(driver, before)
    dropped = driver.schema.column("s").id
    driver.alter(DropColumn("s"), RenameColumn("a", "b"), RenameColumn("k", "key"))
    driver.alter(AddColumn("s", pa.int8()), RenameColumn("b", "a"))
    driver.write(Op.UPSERT, [{"key": 1, "s": 5}], ["key", "s"])
    bring(driver, after)
    assert driver.schema.column("s").id > dropped
    rows = driver.rows(ordered=True)
    assert rows == [
        {"key": 0, "a": 0, "s": None}, {"key": 1, "a": 1, "s": 5}, {"key": 2, "a": 2, "s": None},
    ]  # fmt: skip


def test_an_operation_of_an_older_schema_means_the_one_in_force_at_its_place(driver):
    old = driver.schema
    driver.write(Op.INSERT, numbered(0, 2))
    driver.alter(
        DropColumn("s"), AddColumn("n", pa.int64(), nullable=False, default=7), SetDefault("a", 9)
    )
    driver.alter(SetDefault("n", 8))
    both = [{"k": 0, "a": 5, "s": "ignored"}, {"k": 2, "s": "ignored"}]
    data = payload(old, Op.UPSERT, both[:1]), payload(old, Op.UPSERT, both[1:], ["k", "s"])
    driver.tablet.apply([driver.entry(d) for d in data])
    expected = {0: {"a": 5, "n": 7}, 1: {"a": 1, "n": 7}, 2: {"a": 9, "n": 8}}
    assert by_key(driver) == expected
    driver.reopen()
    assert by_key(driver) == expected
    driver.flush()
    driver.tablet.apply([driver.entry(payload(old, Op.UPDATE, both))])
    driver.reopen()
    expected[2] = {"a": None, "n": 8}
    assert by_key(driver) == expected
