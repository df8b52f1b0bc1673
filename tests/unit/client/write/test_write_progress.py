"""Writes of many rows: progress, the event that stops them, datasets, and bad input."""

import threading
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import rich.console

from nyala.client.results import PartlyWritten
from nyala.client.table import Table
from nyala.common.errors import InvalidArgument, SchemaMismatch
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.requests import connection

OPERATIONS = [
    "upsert", "upsert_ignore", "insert", "insert_ignore", "update", "update_ignore", "delete",
    "delete_ignore",
]  # fmt: skip


@pytest.fixture
def written(monkeypatch):
    """A table whose requests are acknowledged at once, and its requests."""
    client, requests = connection(monkeypatch)
    yield Table(client, opened()), requests
    client.close()


def some(first: int, rows: int = 10) -> pa.RecordBatch:
    keys = pa.array(range(first, first + rows))
    return pa.record_batch([keys, keys], names=["k", "v"])


def parts(count: int, fetched: list[int], stop_at: int = -1, stop: Any = None):
    for n in range(count):
        fetched.append(n)
        if n == stop_at:
            stop.set()
        yield some(n * 10)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_write_shows_progress_and_stops(operation, written):
    table, requests = written
    seen: list[int] = []
    stop = threading.Event()
    fetched: list[int] = []
    done = getattr(table, operation)(parts(9, fetched, 3, stop), progress=seen.append, stop=stop)
    assert (done.rows, done.next_row, done.stopped) == (40, 40, True)
    assert requests.rows == 40
    assert fetched == [0, 1, 2, 3]
    assert seen == [10, 20, 30, 40]
    assert "STOPPED before row 40" in repr(done)


def test_mixed_write_shows_progress_and_stops(written):
    table, requests = written
    stop = threading.Event()
    seen: list[int] = []

    def source():
        for n in range(5):
            if n == 2:
                stop.set()
            yield [{"k": n, "v": n, "_op": "upsert"}]

    done = table.write(source(), progress=seen.append, stop=stop)
    assert (done.rows, done.stopped, requests.rows, seen) == (3, True, 3, [1, 2, 3])


@pytest.mark.parametrize(
    "data",
    [
        lambda fetched: parts(3, fetched),
        lambda fetched: pa.RecordBatchReader.from_batches(some(0).schema, parts(3, fetched)),
        lambda fetched: pa.Table.from_batches([some(0)]),
        lambda fetched: ({"k": n, "v": n} for n in range(5)),
    ],
    ids=["generator", "reader", "table", "dicts"],
)
def test_call_whose_event_is_set_writes_nothing(data, written):
    table, requests = written
    stop = threading.Event()
    fetched: list[int] = []
    stop.set()
    given = data(fetched)
    done = table.upsert(given, stop=stop)
    assert (done.rows, done.next_row, done.stopped, done.timestamp) == (0, 0, True, 0)
    assert (requests.rows, fetched) == (0, [])


def test_all_that_was_fetched_is_written_when_the_call_is_stopped(written):
    table, requests = written
    stop = threading.Event()
    fetched: list[int] = []

    def rows():
        for n in range(10_000):
            fetched.append(n)
            if n == 1_234:
                stop.set()
            yield {"k": n} if n % 3 else {"k": n, "v": n}

    source = rows()
    done = table.upsert(source, stop=stop)
    assert done.next_row == done.rows == requests.rows == len(fetched) == 1_235
    assert next(source)["k"] == done.next_row


def test_event_that_is_not_set_changes_nothing(written):
    table, _ = written
    done = table.upsert(parts(3, []), stop=threading.Event())
    assert (done.rows, done.stopped, done.next_row) == (30, False, 30)
    assert "STOPPED" not in repr(done)


def test_rows_in_memory_are_written_in_slices_that_progress_shows(written):
    table, requests = written
    seen: list[int] = []
    rows = some(0, 120_000)
    assert table.upsert(rows, progress=seen.append).rows == requests.rows == 120_000
    assert seen == [50_000, 100_000, 120_000]
    stop = threading.Event()
    done = table.upsert(rows, progress=lambda rows: stop.set(), stop=stop)
    assert (done.rows, done.next_row, done.stopped) == (50_000, 50_000, True)


def test_whole_requests_are_not_sliced(written):
    table, _ = written
    seen: list[int] = []
    table.upsert(some(0, 120_000), all_or_nothing=True, progress=seen.append)
    assert seen == [120_000]


@pytest.mark.parametrize(("terminal", "drawn"), [(True, True), (False, False)])
def test_bar_is_drawn_in_terminals_only(terminal, drawn, written, monkeypatch, capsys):
    monkeypatch.setattr(rich.console.Console, "is_terminal", terminal)
    table, _ = written
    assert table.upsert(parts(3, []), progress=True).rows == 30
    shown = capsys.readouterr()
    assert shown.out == ""
    assert ("upsert into t" in shown.err and "30 rows" in shown.err) == drawn
    assert drawn or not shown.err


def test_bar_ends_when_the_write_fails(written, monkeypatch, capsys):
    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    table, _ = written

    def breaks():
        yield some(0)
        raise ValueError("the source broke")

    for _ in range(2):  # a second bar can be drawn
        with pytest.raises(PartlyWritten, match="10 rows are written, then: ValueError"):
            table.upsert(breaks(), progress=True)
    assert "10 rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    "how", [{"progress": 3}, {"progress": None}, {"stop": 5}, {"stop": "now"}], ids=str
)
def test_progress_and_stop_of_another_kind_are_refused(how, written):
    table, requests = written
    with pytest.raises(InvalidArgument, match=r"progress=|stop="):
        table.upsert(parts(1, []), **how)
    assert requests.rows == 0


def test_failing_progress_function_ends_the_write(written):
    table, _ = written

    def shows(rows: int) -> None:
        if rows == 20:
            raise RuntimeError("no display")

    with pytest.raises(PartlyWritten, match="RuntimeError: no display") as raised:
        table.upsert(parts(9, []), progress=shows)
    assert raised.value.rows == raised.value.next_row == 20


def test_dataset_is_read_piece_by_piece(written, tmp_path):
    table, requests = written
    for n in range(3):
        pq.write_table(pa.Table.from_batches([some(n * 40_000, 40_000)]), tmp_path / f"{n}.parquet")
    seen: list[int] = []
    done = table.upsert(ds.dataset(tmp_path), progress=seen.append)
    assert done.rows == requests.rows == 120_000
    assert len(seen) >= 12
    stop = threading.Event()
    done = table.upsert(ds.dataset(tmp_path), progress=lambda rows: stop.set(), stop=stop)
    assert done.stopped
    assert 0 < done.next_row <= 10_000


def test_damaged_file_of_a_dataset_is_named(written, tmp_path):
    table, _ = written
    pq.write_table(pa.Table.from_batches([some(0)]), tmp_path / "a.parquet")
    dataset = ds.dataset(tmp_path)
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more of it PAR1")
    with pytest.raises(InvalidArgument, match=r"dataset cannot be read|stream of rows cannot be"):
        table.upsert(dataset)


@pytest.mark.parametrize("path", ["rows.parquet", "/tmp/rows"])
def test_path_is_refused_with_what_to_pass(path, written, tmp_path):
    table, _ = written
    for given in (path, tmp_path):
        with pytest.raises(InvalidArgument, match=r"is a path.*pyarrow\.dataset\.dataset\(path\)"):
            table.upsert(given)


def test_reader_that_was_read_already_writes_nothing(written):
    table, requests = written
    reader = pa.RecordBatchReader.from_batches(some(0).schema, [some(0)])
    assert table.upsert(reader).rows == 10
    assert table.upsert(reader).rows == 0
    generator = parts(1, [])
    assert (table.upsert(generator).rows, table.upsert(generator).rows) == (10, 0)
    assert requests.rows == 20


@pytest.mark.parametrize(
    "bad",
    [
        pa.record_batch({"k": [1], "w": [1]}),
        pa.record_batch({"k": ["one"], "v": [1]}),
        5,
        [{"v": 1}],
    ],
    ids=["unknown column", "another type", "no rows", "no key"],
)
def test_error_of_wrong_piece_in_mid_stream_has_the_rows_written(bad, written):
    table, requests = written
    with pytest.raises(PartlyWritten) as raised:
        table.upsert(iter([some(0), some(10), bad, some(20)]))
    error = raised.value
    assert isinstance(error.__cause__, SchemaMismatch | InvalidArgument)
    assert (error.rows, error.next_row, requests.rows) == (20, 20, 20)
    assert (len(error.unknown), len(error.not_written)) == (0, 0)
    with pytest.raises((SchemaMismatch, InvalidArgument)):
        table.upsert(iter([bad, some(20)]))  # nothing took effect
    assert requests.rows == 20


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupted_write_has_the_rows_written(written, interrupt):
    table, requests = written

    def source():
        yield some(0)
        yield some(10)
        raise interrupt

    with pytest.raises(interrupt) as raised:
        table.upsert(source())
    partly = raised.value.__cause__
    assert isinstance(partly, PartlyWritten)
    assert partly.rows == requests.rows
    assert partly.next_row == partly.rows + len(partly.unknown) + len(partly.not_written)

    def at_once():
        raise interrupt
        yield

    with pytest.raises(interrupt) as raised:
        table.upsert(at_once())
    assert raised.value.__cause__ is None
