"""Values of tables on the command line: all that tables store, as options and in listings."""

import csv
import io
from contextlib import contextmanager

import pyarrow as pa
import pytest

from nyala.cli import sql as verb
from nyala.cli import table_alter
from nyala.cli.output import Format


class Answers:
    """A client of which every query has the same answer."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def sql(self, query: str) -> pa.Table:
        return self._rows


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC")])
def test_default_and_bound_may_precede_python_years(kind):
    zoned = pa.types.is_timestamp(kind) and kind.tz is not None
    text = "0000-06-01 00:00:00Z" if zoned else "0000-06-01"
    expected = pa.array([text]).cast(kind)[0]
    assert table_alter.parse_value(text, kind).equals(expected)
    (end,) = table_alter.parse_bound(f'"{text}"', [kind])
    assert end.equals(expected)


def test_listing_shows_far_times_and_duplicate_column_names(monkeypatch, capsys):
    moment = pa.array([2**62], pa.timestamp("us"))
    days = pa.array([2**31 - 1], pa.int32()).cast(pa.date32())
    rows = pa.Table.from_arrays([moment, days, moment], names=["a", "b", "a"])

    @contextmanager
    def connect(masters):
        yield Answers(rows)

    monkeypatch.setattr("nyala.client.connect", connect)
    verb.sql("select", "", Format.CSV)
    far = "148108-07-06 14:00:27.387904"
    listed = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert listed == [["a", "b", "a"], [far, "5881580-07-11", far]]
