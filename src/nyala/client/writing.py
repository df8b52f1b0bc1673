"""The writes of a table: each returns when it is acknowledged, with row errors beside it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.client.opened import OpenedTable
from nyala.client.results import WriteResult, errors_table
from nyala.client.write.input_batches import in_memory, pieces
from nyala.client.write.sequencer import OP_COLUMN
from nyala.common.batches import to_batches
from nyala.common.errors import InvalidArgument
from nyala.wire.proto import nyala_pb2 as pb

OPS: Mapping[str, int] = {
    "insert": pb.INSERT,
    "insert_ignore": pb.INSERT_IGNORE,
    "upsert": pb.UPSERT,
    "upsert_ignore": pb.UPSERT_IGNORE,
    "update": pb.UPDATE,
    "update_ignore": pb.UPDATE_IGNORE,
    "delete": pb.DELETE,
    "delete_ignore": pb.DELETE_IGNORE,
}
_DELETES = ("delete", "delete_ignore")
_Cast = Callable[[Any], list[pa.RecordBatch]]
"""Returns data as batches of the table's types."""


class TableWrites(OpenedTable):
    """The half of `Table` that changes rows."""

    def insert(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Add new rows; a row whose key exists gets the row error `already_present`."""
        return self._write("insert", data, all_or_nothing)

    def insert_ignore(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Add new rows; rows whose key exists are left as they are."""
        return self._write("insert_ignore", data, all_or_nothing)

    def upsert(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Add or change rows: columns given are set, others keep their value (or default, or null).

        Args:
            data: anything with `__arrow_c_stream__`, a RecordBatch, a pandas frame, a list of dicts; or an
                iterable of these, or of dicts. A stream or an iterable is written as it comes: its next piece
                is fetched when there is room for it.
            all_or_nothing: one failing row voids all rows that travel with it: per tablet, and per
                batch of at most 10,000 rows or 1 MiB.

        Returns:
            Acknowledged: durable on a majority of each tablet's replicas. Row errors are in `.errors`.

        Raises:
            PartlyWritten: some rows are written, others not; it says which, and where to go on.
            OutcomeUnknown: all rows went in one request that was not answered; it may have taken effect.
            SchemaMismatch: a column that is unknown or does not convert without loss; nothing took effect.
            TimedOut: no leader took any row in time; nothing took effect.
        """
        return self._write("upsert", data, all_or_nothing)

    def upsert_ignore(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """As `upsert`, but a row that would change an immutable column is left as it is."""
        return self._write("upsert_ignore", data, all_or_nothing)

    def update(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Change rows; a row whose key is absent gets the row error `not_found`."""
        return self._write("update", data, all_or_nothing)

    def update_ignore(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Change rows; rows whose key is absent are passed over."""
        return self._write("update_ignore", data, all_or_nothing)

    def delete(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Delete by key (other columns are ignored); an absent key gets the row error `not_found`."""
        return self._write("delete", data, all_or_nothing)

    def delete_ignore(self, data: Any, *, all_or_nothing: bool = False) -> WriteResult:
        """Delete by key; absent keys are passed over."""
        return self._write("delete_ignore", data, all_or_nothing)

    def write(
        self, data: Any, op_column: str = OP_COLUMN, *, all_or_nothing: bool = False
    ) -> WriteResult:
        """Mixed operations in row order: `op_column` names each row's op ("insert", "delete", ...).

        Raises:
            InvalidArgument: an op that is null or unknown; nothing was sent.
        """
        schema = self._table.schema

        def cast(piece: Any) -> list[pa.RecordBatch]:
            return [_with_codes(b, op_column) for b in to_batches(piece, schema, extra=[op_column])]

        return self._send(pb.MIXED, data, cast, all_or_nothing)

    def _write(self, op: str, data: Any, all_or_nothing: bool) -> WriteResult:
        def cast(piece: Any) -> list[pa.RecordBatch]:
            batches = to_batches(piece, self._table.schema)
            return [b.select(self.primary_key) for b in batches] if op in _DELETES else batches

        return self._send(OPS[op], data, cast, all_or_nothing)

    def _send(self, op: int, data: Any, cast: _Cast, all_or_nothing: bool) -> WriteResult:
        if not in_memory(data):
            batches: Iterator[pa.RecordBatch] = (b for piece in pieces(data) for b in cast(piece))
        elif len(made := cast(data)) == 1:
            done = self._connection.write(self._table, op, made[0], all_or_nothing)
            return WriteResult(done.rows, errors_table(done.errors), done.timestamp)
        else:
            batches = iter(made)
        done = self._connection.upload(self._table, op, batches, all_or_nothing)
        return WriteResult(done.rows, errors_table(done.errors), done.timestamp)


def _with_codes(batch: pa.RecordBatch, op_column: str) -> pa.RecordBatch:
    """Return a batch whose last column, uint8 `_op`, holds the codes of the ops named."""
    names = batch.column(op_column)
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    positions = pc.index_in(names.cast(pa.string()), pa.array(list(OPS)))
    if positions.null_count:
        row = pc.index(positions.is_null(), True).as_py()
        raise InvalidArgument(f"row {row}: {op_column} is {names[row]}; ops are: {', '.join(OPS)}")
    codes = pa.array(list(OPS.values()), pa.uint8()).take(positions)
    kept = batch.drop_columns([op_column])
    return kept.append_column(pa.field(OP_COLUMN, pa.uint8()), codes)
