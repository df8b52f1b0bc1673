"""JSON and CSV of the command line: strict parsers read them, and every value is there."""

import base64
import csv
import datetime as dt
import io
import json
import math
from contextlib import contextmanager
from decimal import Decimal

import pyarrow as pa
import pytest

from nyala.cli import sql as verb
from nyala.cli.output import Format, as_json, print_json, show

DATA = pa.table({
    "flag": pa.array([True, None, False]),
    "big": pa.array([2**63 - 1, None, -(2**63)], pa.int64()),
    "real": pa.array([math.nan, None, math.inf], pa.float64()),
    "low": pa.array([-math.inf, 0.1, 5e-324], pa.float64()),
    "price": pa.array([Decimal("12345678901234567890.1234"), None, Decimal("-0.0001")], pa.decimal128(38, 4)),
    "raw": pa.array([b"\x00\xff,\"\n", b"", None], pa.binary()),
    "text": pa.array(['a,"b"\r\n', "", "Łódź €"], pa.string()),
    "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)], pa.date32()),
    "at": pa.array([dt.datetime(2026, 1, 1, 0, 0, 0, 1), None, dt.datetime(1, 1, 1)], pa.timestamp("us")),
    "there": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC), None, None], pa.timestamp("us", "UTC")),
    "list": pa.array([[1.5, math.nan], None, []], pa.list_(pa.float64())),
})  # fmt: skip


def refuse(word):
    raise ValueError(f"{word} is not JSON")


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return what `nyala sql` prints of a table."""

    class Client:
        def __init__(self, rows):
            self._rows = rows

        def sql(self, query, *, at):
            return self._rows

    def run(how, rows=DATA):
        @contextmanager
        def connect(masters):
            yield Client(rows)

        monkeypatch.setattr("nyala.client.connect", connect)
        verb.sql("select", "", "", how)
        return capsys.readouterr().out

    return run


def value(kind, text):
    """Return a value of a type as its documented form in CSV and JSON says."""
    if text is None:
        return None
    if pa.types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(text)
    if pa.types.is_timestamp(kind):
        return dt.datetime.fromisoformat(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_list(kind):
        return [value(kind.value_type, one) for one in text]
    return text


def same(found, expected):
    return (
        repr(found) == repr(expected) if isinstance(expected, float | list) else found == expected
    )


def test_json_has_every_value(printed):
    rows = json.loads(printed(Format.JSON), parse_constant=refuse)
    assert len(rows) == DATA.num_rows
    for row, expected in zip(rows, DATA.to_pylist(), strict=True):
        for field in DATA.schema:
            found = value(field.type, row[field.name])
            assert same(found, expected[field.name]), field.name


def test_csv_has_every_value(printed):
    text = printed(Format.CSV)
    names, *rows = csv.reader(io.StringIO(text), strict=True)
    assert names == DATA.schema.names
    for row, expected in zip(rows, DATA.to_pylist(), strict=True):
        for cell, field in zip(row, DATA.schema, strict=True):
            if cell == "" and expected[field.name] in (None, "", b""):
                continue  # `csv` does not distinguish an empty field and a quoted empty text
            plain = pa.types.is_boolean(field.type) or pa.types.is_integer(field.type)
            nested = plain or pa.types.is_list(field.type)
            found = value(field.type, json.loads(cell, parse_constant=refuse) if nested else cell)
            assert same(found, expected[field.name]), field.name
    assert ',"",' in text, "an empty text or binary value is quoted"


def test_repeated_column_names_are_numbered_in_json(printed):
    rows = pa.Table.from_arrays([pa.array([n]) for n in range(4)], names=["a", "a", "a_2", "a"])
    assert json.loads(printed(Format.JSON, rows)) == [{"a": 0, "a_2": 1, "a_2_2": 2, "a_3": 3}]


def test_one_object_a_line_is_flushed_and_has_no_line_break(capsys):
    print_json({"s": "a\nb", "n": math.nan}, line=True)
    assert capsys.readouterr().out == '{"s": "a\\nb", "n": "NaN"}\n'


def test_values_of_other_types_are_texts():
    assert as_json({1: (dt.timedelta(seconds=1), Decimal(1))}) == {"1": ["0:00:01", "1"]}


def test_binary_values_in_a_table_for_people_show_their_bytes(capsys):
    show(("raw",), [(b"\x00ab\xff",)], Format.TABLE, data=True)
    assert r"\x00ab\xff" in capsys.readouterr().out
