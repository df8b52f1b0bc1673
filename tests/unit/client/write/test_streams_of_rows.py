"""Input of writes: data in memory is checked as a whole, a stream is written while it is read."""

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from nyala.client.core import ClientOptions
from nyala.client.results import PartlyWritten
from nyala.client.table import Table
from nyala.client.write.pending_call import Written
from nyala.common.errors import InvalidArgument, SchemaMismatch, TimedOut
from tests.unit.client.support.client_bulk import opened
from tests.unit.client.support.immediate import Immediate

ROWS = [{"k": n, "v": -n} for n in range(5)]
WHOLE = pa.table({"k": range(5), "v": [-n for n in range(5)]})


class Connection:
    """A connection, its core and each upload in one: records the batches."""

    def __init__(self) -> None:
        self.core = self.session = self
        self.call = self, Immediate()
        self.options = ClientOptions()
        self.rows: list[dict[str, Any]] = []
        self.whole: list[int] = []
        self.streamed: list[int] = []

    async def write(self, table: Any, op: int, batch: pa.RecordBatch, **_how: Any) -> Written:
        self.whole.append(batch.num_rows)
        self.rows += batch.to_pylist()
        return Written(batch.num_rows, [], 7)

    async def begin(self, table: Any, op: int, **_how: Any) -> "Connection":
        return self

    async def take(self, batch: pa.RecordBatch) -> None:
        self.streamed.append(batch.num_rows)
        self.rows += batch.to_pylist()

    async def finish(self) -> Written:
        return Written(sum(self.streamed), [], 7)

    async def stop(self, why: BaseException) -> BaseException:
        return why

    def abandon(self) -> None:
        """Do nothing: no request is in flight."""


def table() -> tuple[Table, Any]:
    connection: Any = Connection()
    return Table(connection, opened()), connection


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        tuple(ROWS),
        WHOLE,
        WHOLE.combine_chunks().to_batches()[0],
        WHOLE.to_pandas(),
        pl.DataFrame(WHOLE),
    ],
    ids=["dicts", "tuple", "table", "batch", "pandas", "polars"],
)
def test_in_memory_data_is_sent_as_one_write(data):
    writes, connection = table()
    assert writes.upsert(data).rows == 5
    assert (connection.whole, connection.streamed) == ([5], [])
    assert connection.rows == ROWS


def some(start: int) -> pa.RecordBatch:
    return WHOLE.slice(start, 2).combine_chunks().to_batches()[0]


@pytest.mark.parametrize(
    "data",
    [
        lambda: pa.RecordBatchReader.from_batches(WHOLE.schema, [some(0), some(2), some(4)]),
        lambda: (b for b in [some(0), some(2), some(4)]),
        lambda: [some(0), some(2), some(4)],
        lambda: iter([WHOLE.slice(0, 2), WHOLE.slice(2, 2), WHOLE.slice(4)]),
        lambda: (pd.DataFrame(ROWS[n : n + 2]) for n in (0, 2, 4)),
        lambda: (pl.DataFrame(ROWS[n : n + 2]) for n in (0, 2, 4)),
        lambda: (ROWS[n : n + 2] for n in (0, 2, 4)),
    ],
    ids=["reader", "batches", "list", "tables", "pandas", "polars", "lists"],
)
def test_stream_is_sent_in_batches(data):
    writes, connection = table()
    assert writes.upsert(data()).rows == 5
    assert (connection.whole, connection.streamed) == ([], [2, 2, 1])
    assert connection.rows == ROWS


def test_single_dicts_are_collected_into_batches():
    writes, connection = table()
    assert writes.insert({"k": n, "v": 0} for n in range(2_500)).rows == 2_500
    assert connection.streamed == [1000, 1000, 500]


def test_stream_is_read_only_as_fast_as_written():
    fetched = []

    def source():
        for n in range(0, 100, 2):
            fetched.append(n)
            yield pa.record_batch({"k": [n, n + 1], "v": [0, 0]})

    writes, connection = table()

    taken = []

    async def take(batch: pa.RecordBatch) -> None:
        taken.append(batch)
        if sum(b.num_rows for b in taken) == 4:
            assert len(fetched) == 2
            raise TimedOut("no leader took it")

    connection.take = take
    for data in (source(), pa.RecordBatchReader.from_batches(WHOLE.schema, source())):
        fetched.clear()
        taken.clear()
        with pytest.raises(TimedOut):
            writes.upsert(data)


def test_stream_deletes_send_keys_only_and_mixed_rows_send_op_codes():
    writes, connection = table()
    writes.delete(iter([some(0), some(2)]))
    assert connection.rows == [{"k": n} for n in range(4)]
    connection.rows.clear()
    writes.write(iter([some(0).append_column("_op", pa.array(["upsert", "delete"]))]))
    assert [row["_op"] for row in connection.rows] == [3, 7]


def test_columns_of_arrow_stream_are_checked_before_first_row():
    fetched = []

    def source():
        fetched.append(1)
        yield pa.record_batch({"k": [1], "w": [1]})

    reader = pa.RecordBatchReader.from_batches(
        pa.schema({"k": pa.int64(), "w": pa.int64()}), source()
    )
    writes, _ = table()
    with pytest.raises(SchemaMismatch, match="no column 'w'"):
        writes.upsert(reader)
    assert not fetched


@pytest.mark.parametrize(
    "data", [5, "text", {"k": 1}, {1, 2}, iter([1, 2]), iter(["k"]), [1], pd.Series([1, 2])]
)
def test_non_tabular_data_is_refused(data):
    writes, connection = table()
    with pytest.raises(InvalidArgument):
        writes.upsert(data)
    assert not connection.rows


def test_partly_written_error_is_exported():
    import nyala

    assert nyala.PartlyWritten is PartlyWritten
    assert issubclass(nyala.PartlyWritten, nyala.errors.OutcomeUnknown)


def test_error_names_row_of_whole_call():
    made, _ = table()
    pieces = [pa.table({"k": [0, 1], "v": [0, 1]}), [{"k": 2, "v": 2}, {"k": 3, "v": "three"}]]
    with pytest.raises(SchemaMismatch, match="row 3"):
        made.upsert(iter(pieces))
    rows = [{"k": 0, "_op": "upsert"}, {"k": 1, "v": 1, "_op": "boom"}]
    with pytest.raises(InvalidArgument, match="row 1: _op is boom"):
        made.write(rows)
    with pytest.raises(InvalidArgument, match="row 3: _op is boom"):
        made.write(iter([rows[:1], rows[:1], rows]))
