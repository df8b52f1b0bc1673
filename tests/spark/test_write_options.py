"""Checks of a frame in the driver, before any task runs."""

from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nyala.common.errors import InvalidArgument, NotFound, SchemaMismatch
from nyala.common.schema import from_arrow
from nyala.spark.writes import options as writer
from nyala.spark.writes.replaced_rows import ReplacedRows


def use_table(monkeypatch, schema):
    """Let the checks find a table with this schema."""
    known = SimpleNamespace(id="t", schema=schema, ranges_version=0)
    table = SimpleNamespace(definition=schema, known=known)
    monkeypatch.setattr(writer, "written_table", lambda masters, name: table)
    client = SimpleNamespace(now=lambda: 1)
    monkeypatch.setattr(writer, "writing_client", lambda masters: client)


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_decimal_for_a_floating_column_is_refused_with_advice_for_spark(monkeypatch, kind):
    schema = from_arrow(pa.schema({"k": pa.int64(), "v": kind}), ["k"])
    use_table(monkeypatch, schema)
    frame = pa.table({"k": [1], "v": [Decimal("0.5")]}).schema
    with pytest.raises(SchemaMismatch) as caught:
        writer.WriteOptions.of("t", "", {}, frame)
    assert f"cast(v as {kind})" in caught.value.message
    assert "round_decimals" not in caught.value.message


@pytest.fixture
def options_of(monkeypatch):
    schema = from_arrow(pa.schema({"k": pa.int64(), "day": pa.int64(), "v": pa.string()}), ["k"])
    use_table(monkeypatch, schema)

    def made(*, overwrite=True, columns=("k", "day", "v"), **options):
        frame = pa.schema([schema.arrow.field(c) for c in columns])
        return writer.WriteOptions.of("t", "", options, frame, overwrite=overwrite)

    return made


def test_overwrite_replaces_every_row_unless_a_condition_is_given(options_of):
    assert options_of().replaced == "true"
    assert options_of(where="day = 1").replaced == "day = 1"
    assert options_of(overwrite=False).replaced == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overwrite": False, "where": "day = 1"}, 'mode("overwrite") replaces'),
        ({"atomic": "false"}, "cannot have atomic=false"),
        ({"op": "delete"}, "the frame has the new rows"),
        ({"op_column": "v"}, "the frame has the new rows"),
        ({"where": "day = 1", "columns": ("k", "v")}, "'day', which the frame lacks"),
        ({"where": "day = "}, "at character"),
    ],
)
def test_options_with_which_rows_cannot_be_replaced_are_refused(options_of, options, words):
    with pytest.raises(InvalidArgument) as caught:
        options_of(**options)
    assert words in caught.value.message


def test_condition_with_an_unknown_column_is_refused(options_of):
    with pytest.raises(NotFound, match="did you mean 'day'"):
        options_of(where="dya = 1")


def test_row_outside_of_the_condition_is_named_by_its_key():
    schema = from_arrow(pa.schema({"k": pa.int64(), "day": pa.int64()}), ["k"])
    table: Any = SimpleNamespace(definition=schema, primary_key=["k"])
    rows = ReplacedRows("day = 1", table)
    rows.check(pa.record_batch({"k": [1, 2], "day": pa.array([1, 1], pa.int32())}))
    with pytest.raises(InvalidArgument, match=r"row 3 of a task, with the key \{'k': 4\}"):
        rows.check(pa.record_batch({"k": [3, 4], "day": [1, None]}))
