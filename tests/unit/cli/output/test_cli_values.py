"""Values of tables on the command line: every type, as options and in listings."""

import csv
import io
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pytest
import typer

from nyala.cli import sql as verb
from nyala.cli import table as table_verbs
from nyala.cli import table_alter
from nyala.cli.output import Format


class Answers:
    """A client that returns the same result for every query."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def sql(self, query: str, *, at: int | None) -> pa.Table:
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
    verb.sql("select", "", "", Format.CSV)
    far = "148108-07-06 14:00:27.387904"
    listed = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert listed == [["a", "b", "a"], [far, "5881580-07-11", far]]


@pytest.mark.parametrize(
    ("rows", "limit", "printed", "more"),
    [(3, 2, 2, True), (2, 2, 2, False), (1, 2, 1, False), (3, 0, 3, False)],
)
def test_table_scan_says_when_rows_are_left_out(monkeypatch, capsys, rows, limit, printed, more):
    def scan(columns, where, at, most, order):
        return SimpleNamespace(to_arrow=lambda: pa.table({"k": list(range(rows))[:most]}))

    @contextmanager
    def connect(masters):
        yield SimpleNamespace(table=lambda name: SimpleNamespace(scan=scan))

    monkeypatch.setattr("nyala.client.connect", connect)
    table_verbs.scan("t", limit=limit, format=Format.CSV)
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 1 + printed
    assert ("--limit 0 prints all" in told.err) == more


@pytest.mark.parametrize("agreed", [False, True])
def test_table_is_dropped_only_once_the_user_agrees(monkeypatch, capsys, agreed):
    dropped = []

    @contextmanager
    def connect(masters):
        yield SimpleNamespace(
            table=lambda name: None, drop_table=lambda name, reserve_seconds: dropped.append(name)
        )

    monkeypatch.setattr("nyala.client.connect", connect)
    monkeypatch.setattr("typer.confirm", lambda text: agreed)
    if agreed:
        table_verbs.drop("t")
    else:
        with pytest.raises(typer.Exit) as ended:
            table_verbs.drop("t")
        assert ended.value.exit_code == 1
        assert "nothing was dropped" in capsys.readouterr().err
    assert dropped == ["t"] * agreed
