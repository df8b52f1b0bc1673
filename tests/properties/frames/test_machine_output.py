"""Every stored value survives JSON and CSV of the command line, read back strictly, and its write."""

import base64
import csv
import io
import json
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nyala.cli import sql as verb
from nyala.cli.output import Format
from nyala.common.batches import to_batches
from nyala.common.schema import from_arrow
from tests.properties.support.type_ends import ENDS, any_values, bits, table_with


def refuse(word: str) -> None:
    raise ValueError(f"{word} is no JSON")


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return what `nyala sql` prints of a table."""

    def run(table: pa.Table, how: Format) -> str:
        @contextmanager
        def connect(masters):
            yield SimpleNamespace(sql=lambda query, at: table)

        monkeypatch.setattr("nyala.client.connect", connect)
        verb.sql("select", "", "", how)
        found: str = capsys.readouterr().out
        return found

    return run


def of_text(text: str, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a text, by the rules of the page on output."""
    if pa.types.is_binary(kind):
        return pa.scalar(base64.b64decode(text, validate=True), kind)
    if pa.types.is_date(kind):
        return pa.scalar(int(np.datetime64(text, "D").astype(np.int64)), kind)
    if pa.types.is_timestamp(kind):
        plain = text.removesuffix("+00:00")
        assert (plain != text) == (kind.tz is not None), text
        return pa.scalar(int(np.datetime64(plain, "us").astype(np.int64)), kind)
    return pa.scalar(text, pa.string()).cast(kind)


def of_json(value: Any, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a JSON value."""
    if isinstance(value, str):
        return pa.scalar(value, kind) if pa.types.is_string(kind) else of_text(value, kind)
    number = pa.types.is_integer(kind) and not isinstance(value, bool)
    assert value is None or number or pa.types.is_boolean(kind) or pa.types.is_floating(kind), value
    return pa.scalar(value, kind)


def of_csv(text: str, quoted: bool, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a CSV field; one that is empty and not quoted is null."""
    if not text and not quoted:
        return pa.scalar(None, kind)
    return pa.scalar(text, kind) if pa.types.is_string(kind) else of_text(text, kind)


def csv_rows(text: str) -> list[list[tuple[str, bool]]]:
    """Return rows of fields, each with whether it is quoted; refuses what RFC 4180 does not have."""
    rows, row, at = [], [], 0
    while at < len(text):
        if text[at] == '"':
            field, end = "", at + 1
            while text[end] != '"' or text[end + 1] == '"':
                field += text[end]
                end += 1 + (text[end] == '"')
            end += 1
            row.append((field, True))
        else:
            end = at
            while text[end] not in ",\n":
                assert text[end] not in '"\r', text
                end += 1
            row.append((text[at:end], False))
        assert text[end] in ",\n", text
        if text[end] == "\n":
            rows.append(row)
            row = []
        at = end + 1
    assert not row
    return rows


def check(printed: Any, values: list[Any], kind: pa.DataType) -> None:
    """Read both outputs of some values, write what they hold, and compare."""
    table = table_with(values, kind)
    schema = from_arrow(table.schema, ["k"])
    rows = json.loads(printed(table, Format.JSON), parse_constant=refuse)
    assert [list(row) for row in rows] == [["k", "v"]] * len(values)
    text = printed(table, Format.CSV)
    (names, *fields) = csv_rows(text)
    assert [name for name, _ in names] == ["k", "v"]
    assert [*csv.reader(io.StringIO(text, newline=""), strict=True)][1:] == [
        [f for f, _ in r] for r in fields
    ]
    for found in (
        [of_json(row["v"], kind) for row in rows],
        [of_csv(*row[1], kind) for row in fields],
    ):
        column = pa.array(
            [one.value if hasattr(one, "value") else one.as_py() for one in found], kind
        )
        (batch,) = to_batches(pa.table({"k": table["k"], "v": column}), schema)
        assert bits(pa.chunked_array([batch["v"]])) == bits(table["v"])


@pytest.mark.parametrize("kind", ENDS, ids=str)
def test_ends_of_types_survive_json_and_csv(printed, kind):
    check(printed, [None, *ENDS[kind]], kind)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_any_values_survive_json_and_csv(printed, data):
    kind = data.draw(st.sampled_from(list(ENDS)))
    check(printed, data.draw(st.lists(any_values(kind), min_size=1, max_size=5)), kind)
