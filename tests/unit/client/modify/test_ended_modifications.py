"""Ends of deletes and updates by predicate: what an error says, and what is still held after it."""

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pyarrow as pa
import pytest

from nyala.client.caller import finished
from nyala.client.core import ClientOptions
from nyala.client.modify import modification
from nyala.client.modify.modification import Modification, RowChange
from nyala.client.modify.results import ChangeResult, PartlyChanged
from nyala.client.read.ordered_merge import last_key
from nyala.client.results import PartlyWritten
from nyala.client.write.pending_call import Written
from nyala.client.write.watch import Watch
from nyala.common.alteration import RenameColumn, alter
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import FALSE
from nyala.env.tasks import ClosedDuringCall
from nyala.wire.proto import nyala_pb2 as pb
from tests.unit.client.support.client_bulk import SCHEMA, opened
from tests.unit.client.support.immediate import Immediate

CHUNKS = 3
ONE = pa.record_batch([pa.array([0]), pa.array([0])], names=["k", "v"])


class Holding:
    """A hold that is never renewed."""

    at = 7

    def __init__(self, released: list[int]) -> None:
        self._released = released

    def left_ms(self) -> int:
        return modification.HOLD_MS

    async def release(self) -> None:
        self._released.append(self.at)


class Client(Immediate):
    """A caller and the client's core in one: chunks of one row are read, and each write is acknowledged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, on_write: Callable[[int], object]) -> None:
        self.table = opened()
        self.released: list[int] = []
        self.names: list[str] = []
        self.closed = False
        self._on_write = on_write
        monkeypatch.setattr(modification, "CHUNK_ROWS", 1)
        self.options = ClientOptions()
        self.session = self
        monkeypatch.setattr(modification, "Scanning", lambda *_: self)

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        for n in range(CHUNKS):
            yield pa.record_batch([pa.array([n]), pa.array([n])], names=["k", "v"])

    async def hold(self, _table: Any, _at: Any, _ttl_ms: int) -> Holding:
        return Holding(self.released)

    async def run(self, work: Any) -> Any:
        if self.closed:
            work.close()
            raise ClosedDuringCall("the client was closed during this call")
        return await work

    finish = run

    async def write(self, table: Any, _op: int, batch: pa.RecordBatch, **_how: Any) -> Written:
        self._on_write(batch.column("k")[0].as_py())
        self.names.append(table.schema.by_id[SCHEMA.column("v").id].name)
        return Written(batch.num_rows, [], 5)

    def modify(self, progress: Any = False) -> ChangeResult:
        change = RowChange(pb.UPDATE, "updated", ("k", "v"), lambda rows: rows)
        core: Any = self
        call = Modification(core, core, self.table, FALSE, change, Watch(progress))
        return finished(call.run(None, b""))


def test_error_of_the_function_that_shows_progress_tells_how_far_the_call_came(monkeypatch):
    def show(rows: int) -> None:
        if rows == 2:
            raise ValueError("the terminal is gone")

    client = Client(monkeypatch, lambda key: None)
    with pytest.raises(
        PartlyChanged, match=r"2 rows .* ValueError.*the terminal is gone"
    ) as caught:
        client.modify(show)
    assert isinstance(caught.value.__cause__, ValueError)
    assert (caught.value.result.changed, caught.value.result.at) == (2, Holding.at)
    assert not client.released, "the call can be continued at its snapshot"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_error_of_a_signal_has_the_progress_as_its_cause(monkeypatch, error):
    def interrupted(key: int) -> None:
        if key == 1:
            raise error

    client = Client(monkeypatch, interrupted)
    with pytest.raises(error) as caught:
        client.modify()
    assert isinstance(caught.value.__cause__, PartlyChanged)
    assert caught.value.__cause__.result.changed == 1


def test_rows_of_a_partly_written_chunk_are_counted(monkeypatch):
    def partly(key: int) -> None:
        if key == 1:
            raise PartlyWritten("2 rows are written", rows=2, timestamp=9, next_row=4)

    with pytest.raises(PartlyChanged) as caught:
        Client(monkeypatch, partly).modify()
    result = caught.value.result
    assert (result.matched, result.changed, result.timestamp) == (3, 3, 9)
    assert result.after == last_key(SCHEMA, ONE).hex(), "the chunk is repeated"


def test_refused_call_releases_its_snapshot(monkeypatch):
    def refused(key: int) -> None:
        raise InvalidArgument("no such column")

    client = Client(monkeypatch, refused)
    with pytest.raises(InvalidArgument):
        client.modify()
    assert client.released == [Holding.at]


def test_complete_call_whose_client_is_closed_at_its_end_returns_its_result(monkeypatch):
    client = Client(monkeypatch, lambda key: None)

    def close(rows: int) -> None:
        client.closed = rows == CHUNKS

    assert client.modify(close).changed == CHUNKS, "all rows are changed: no error says otherwise"


def test_columns_of_a_call_stay_when_another_thread_alters_the_table(monkeypatch):
    def altered(key: int) -> None:
        client.table.schema = alter(SCHEMA, [RenameColumn("v", "w")])

    client = Client(monkeypatch, altered)
    assert client.modify().changed == CHUNKS
    assert client.names == ["v"] * CHUNKS
