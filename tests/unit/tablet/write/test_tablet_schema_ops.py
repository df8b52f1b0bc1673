"""Operations that alter a tablet: effects, refusals that are equal at all replicas, encoding."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.alteration import (
    AddColumn,
    DropColumn,
    RenameColumn,
    SetDefault,
    Step,
    alter,
)
from nyala.common.errors import BadVersion, Corrupt
from nyala.tablet.files import replicated_ops
from nyala.tablet.files.replicated_ops import RowOp
from tests.unit.tablet.support.alter_support import STAGES, bring, by_key
from tests.unit.tablet.support.tablet_support import (
    INT_KEY,
    PAIR_KEY,
    numbered,
    payload,
)


@pytest.mark.parametrize("stage", STAGES)
def test_added_column_applies_to_old_and_new_rows(driver, stage):
    driver.write(RowOp.INSERT, numbered(0, 2))
    bring(driver, stage)
    old = driver.schema
    driver.alter(
        AddColumn("f", pa.int8(), default=1, immutable=True),
        AddColumn("g", pa.int8(), immutable=True),
        AddColumn("n", pa.int8(), nullable=False, default=2),
        SetDefault("n", None),
    )
    kept = [
        {"k": 0, "f": 1, "g": None},
        {"k": 0, "f": 2},
        {"k": 1, "f": None},
        {"k": 1, "f": 1, "g": 5},
    ]
    assert driver.write(RowOp.UPDATE, kept[:1], ["k", "f", "g"]) == []
    assert driver.write(RowOp.UPSERT, kept[1:3], ["k", "f"]) == [(0, "immutable"), (1, "immutable")]
    assert driver.write(RowOp.UPDATE, kept[3:], ["k", "f", "g"]) == [(0, "immutable")]
    assert driver.write(RowOp.UPDATE, [{"k": 1, "n": None}], ["k", "n"]) == [(0, "null_value")]
    data = payload(old, RowOp.UPSERT, [{"k": 1, "a": 9}, {"k": 2, "a": 9}], ["k", "a"])
    [result] = driver.tablet.apply([driver.entry(data)])
    [error] = replicated_ops.decode_result(result)[1]
    assert (error.row, error.code) == (1, "null_value"), (
        "a new row of a client without the required column fails"
    )
    assert "'n'" in error.message
    bring(driver, stage)
    assert by_key(driver) == {
        0: {"a": 0, "s": "s0", "f": 1, "g": None, "n": 2},
        1: {"a": 9, "s": "s1", "f": 1, "g": None, "n": 2},
    }


def test_many_alterations_between_restarts_are_replayed(driver):
    """Some of them flushed, some only in the log, with rows of every version."""
    expected: dict[int, dict[str, Any]] = {}
    for version in range(12):
        driver.write(RowOp.INSERT, [{"k": version}], ["k"])
        row = dict.fromkeys((c.name for c in driver.schema.value_columns), None)
        expected[version] = {
            **row, **{c.name: c.default.as_py() for c in driver.schema.columns if c.default is not None}
        }  # fmt: skip
        steps: list[Step] = [AddColumn(f"c{version}", pa.int64(), default=version)]
        if version > 2:
            steps += [DropColumn(f"c{version - 2}"), SetDefault(f"c{version - 1}", -version)]
        driver.alter(*steps)
        for row in expected.values():
            row[f"c{version}"] = version
            row.pop(f"c{version - 2}" if version > 2 else "", None)
        if version % 4 == 1:
            driver.flush()
        if version % 6 == 5:
            driver.compact(driver.now)
        if version % 3 == 2:
            driver.reopen()
            assert driver.tablet.info.schema == driver.schema
        assert by_key(driver) == expected
    assert driver.schema.next_column_id == 3 + 12


def test_same_or_older_schema_version_changes_nothing(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    first = alter(driver.schema, [AddColumn("n", pa.int8(), default=1)])
    second = alter(first, [DropColumn("n"), AddColumn("m", pa.int8(), default=2)])
    assert driver.apply_schema(second) == (1, [])
    before = driver.rows()
    assert before[0] == {"k": 0, "a": 0, "s": "s0", "m": 2}
    for schema in (first, second, INT_KEY, replace(first, version=2)):
        assert driver.apply_schema(schema, compression="zstd") == (0, [])
        assert driver.tablet.info.schema == second
        assert not driver.tablet.info.options
    driver.reopen()
    assert driver.tablet.info.schema == second
    assert driver.rows() == before


def test_incompatible_schema_is_refused_by_every_replica(driver):
    driver.write(RowOp.INSERT, numbered(0, 3))
    a = replace(driver.schema.columns[1], type=pa.string())
    wrong = replace(INT_KEY, version=1, columns=(INT_KEY.columns[0], a, INT_KEY.columns[2]))
    before = driver.rows()
    count, [error] = driver.apply_schema(wrong)
    assert (count, error.row, error.code) == (0, 0, "invalid_argument")
    assert error.message.startswith("column 'a' would change its type or its value in older rows")
    count, [error] = driver.apply_schema(replace(INT_KEY, version=1), compression="much")
    assert (count, error.code) == (0, "invalid_argument")
    assert "compression='much'" in error.message
    driver.reopen()
    assert driver.tablet.info.schema == INT_KEY
    assert driver.rows() == before


def test_schema_operation_encoding_is_unchanged(driver):
    schema = alter(
        PAIR_KEY,
        [
            AddColumn("d", pa.decimal128(38, 4), default=Decimal("-1.5")),
            AddColumn("z", pa.timestamp("us", "UTC")),
            SetDefault("d", None),
            DropColumn("s"),
        ],
    )
    op = replicated_ops.SchemaOp(schema, "nyala é", {"compression": "lz4", "a": "b"})
    data = replicated_ops.encode_schema(op)
    assert replicated_ops.decode_schema(data) == op
    assert replicated_ops.is_schema(data)
    assert not replicated_ops.is_schema(payload(INT_KEY, RowOp.INSERT, numbered(0, 1)))
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]):
            with pytest.raises(Corrupt):
                replicated_ops.decode_schema(damaged)
    with pytest.raises(BadVersion, match="version 2"):
        replicated_ops.decode_schema(b"\2" + data[1:])
    with pytest.raises(Corrupt):
        driver.tablet.apply([driver.entry(data[:-1])])


def test_options_and_name_are_part_of_schema_operation(driver):
    rows = [{"k": k, "a": 7, "s": "x" * 50} for k in range(2000)]
    driver.write(RowOp.INSERT, rows)
    driver.flush()
    plain = driver.tablet.data_bytes
    schema = alter(driver.schema, [RenameColumn("a", "a")])
    data = replicated_ops.encode_schema(
        replicated_ops.SchemaOp(schema, "later", {"compression": "zstd"})
    )
    driver.tablet.apply([driver.entry(data)])
    driver.write(RowOp.UPSERT, rows)
    driver.flush()
    driver.compact(driver.now)
    assert driver.tablet.data_bytes < plain / 2
    driver.reopen()
    assert (driver.tablet.info.table_name, driver.tablet.info.options) == (
        "later",
        {"compression": "zstd"},
    )
    assert driver.rows(ordered=True) == rows
