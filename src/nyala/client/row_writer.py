"""Writes of rows to one table: conversion of the user's data, then a request per batch."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.read.read_spec import key_names
from nyala.client.results import WriteResult, errors_table
from nyala.client.transactions.staged_writes import part_of
from nyala.client.write.input_batches import in_memory, pieces, until
from nyala.client.write.pending_call import Written
from nyala.client.write.sequencer import OP_COLUMN
from nyala.client.write.staging import PartStage
from nyala.client.write.watch import Watch, WriteArguments, split_arguments
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
IN_TRANSACTIONS = (
    "upsert",
    "upsert_ignore",
    "insert_ignore",
    "update_ignore",
    "delete",
    "delete_ignore",
)
"""Operations that cannot fail because of what is in the table, so that a transaction takes them."""
SLICE_ROWS = 50_000
"""Maximum number of rows of in-memory data that are accepted at a time, if progress is shown."""
_DELETES = ("delete", "delete_ignore")
_Cast = Callable[[Any, int], list[pa.RecordBatch]]
"""Converts data to batches of the table's types; the number is that of the first row, for errors."""


class RowWriter:
    """Converts data to the table's schema and writes it; returns when it is acknowledged.

    Args:
        connection: runs the requests.
        table: written to.
    """

    def __init__(self, connection: Connection, table: OpenTable) -> None:
        self._connection = connection
        self._table = table

    def write(self, op: str, data: Any, all_or_nothing: bool, how: WriteArguments) -> WriteResult:
        """Write rows with one operation; raises as `Table.upsert`.

        Args:
            op: a key of `OPS`.
            data: as for `Table.upsert`.
            all_or_nothing: as for `Table.upsert`.
            how: conversions, progress, and the event that stops the write.

        Returns:
            The acknowledged rows, their timestamp and the row errors.
        """
        conversion, watch = split_arguments(how, f"{op} into {self._table.name}")
        stage = part_of(self._connection, how.get("txn"))
        if stage is not None:
            _check_ops([op], self._table.name)

        def cast(piece: Any, row: int) -> list[pa.RecordBatch]:
            schema = self._table.schema  # it may change while a stream is written
            batches = to_batches(piece, schema, first_row=row, conversion=conversion)
            if op in _DELETES:
                return [b.select(key_names(schema)) for b in batches]
            return batches

        return self._send(OPS[op], data, cast, all_or_nothing, watch, stage)

    def write_mixed(
        self, data: Any, op_column: str, all_or_nothing: bool, how: WriteArguments
    ) -> WriteResult:
        """Write rows that each name their operation; raises as `Table.write`.

        Args:
            data: as for `Table.upsert`, with `op_column`.
            op_column: name of a string column with keys of `OPS`.
            all_or_nothing: as for `Table.upsert`.
            how: conversions, progress, and the event that stops the write.

        Returns:
            The acknowledged rows, their timestamp and the row errors.
        """
        conversion, watch = split_arguments(how, f"write to {self._table.name}")
        stage = part_of(self._connection, how.get("txn"))
        schema = self._table.schema
        if not isinstance(op_column, str) or op_column in schema.by_name:
            raise InvalidArgument(
                f"op_column={op_column!r}: it names a column of the data with the operation of each row, and "
                "none of the table's; rename that column of the data"
            )

        def cast(piece: Any, row: int) -> list[pa.RecordBatch]:
            made = []
            batches = to_batches(
                piece, schema, extra=[op_column], first_row=row, conversion=conversion
            )
            for batch in batches:
                if stage is not None:
                    _check_ops(pc.unique(batch.column(op_column)).to_pylist(), self._table.name)
                made.append(_with_codes(batch, op_column, row))
                row += batch.num_rows
            return made

        return self._send(pb.MIXED, data, cast, all_or_nothing, watch, stage)

    def _send(
        self,
        op: int,
        data: Any,
        cast: _Cast,
        all_or_nothing: bool,
        watch: Watch,
        stage: PartStage | None,
    ) -> WriteResult:
        if not in_memory(data):
            batches = _cast_pieces(data, cast, watch)
        elif len(made := cast(data, 0)) == 1 and not watch.active and stage is None:
            done = self._connection.write(self._table, op, made[0], all_or_nothing)
            return WriteResult(done.rows, errors_table(done.errors), done.timestamp)
        else:
            slices = iter(made) if all_or_nothing or not watch.active else _slices(made)
            batches = until(slices, watch.stopped)
        with watch:
            done = self._upload(op, watch.counted(batches), all_or_nothing, stage)
        errors = errors_table(done.errors)
        return WriteResult(done.rows, errors, done.timestamp, watch.ended_early)

    def _upload(
        self,
        op: int,
        batches: Iterator[pa.RecordBatch],
        all_or_nothing: bool,
        stage: PartStage | None,
    ) -> Written:
        """Write batches, or stage them: a failure, and any row error, then refuse the commit."""
        upload = self._connection.upload
        if stage is None:
            return upload(self._table, op, batches, all_or_nothing)
        with stage.writing(self._table) as noted:
            done = upload(self._table, op, batches, all_or_nothing, stage)
            noted.append(done)
        return done


def _check_ops(ops: Iterable[str | None], table: str) -> None:
    """Check that a transaction takes operations.

    Raises:
        InvalidArgument: one of them could fail because of what is in the table.
    """
    for op in ops:
        if op in OPS and op not in IN_TRANSACTIONS:
            raise InvalidArgument(
                f"{op} into table {table!r} could fail because of the rows in the table, so a transaction "
                f"does not take it; it takes {', '.join(IN_TRANSACTIONS)}"
            )


def _slices(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Cut batches, so that a write of them shows its progress and can be stopped."""
    for batch in batches:
        for first in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(first, SLICE_ROWS)


def _cast_pieces(data: Any, cast: _Cast, watch: Watch) -> Iterator[pa.RecordBatch]:
    row = 0
    for piece in pieces(data, watch.stopped):
        for batch in cast(piece, row):
            row += batch.num_rows
            yield batch


def _with_codes(batch: pa.RecordBatch, op_column: str, first_row: int) -> pa.RecordBatch:
    """Replace the column of operation names by a last column `_op` of uint8 codes.

    Args:
        batch: the rows.
        op_column: the column of names.
        first_row: number of the first row, for errors.
    """
    names = batch.column(op_column)
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    positions = pc.index_in(names.cast(pa.string()), pa.array(list(OPS)))
    if positions.null_count:
        row = pc.index(positions.is_null(), True).as_py()
        raise InvalidArgument(
            f"row {first_row + row}: {op_column} is {names[row]}; ops are: {', '.join(OPS)}"
        )
    codes = pa.array(list(OPS.values()), pa.uint8()).take(positions)
    kept = batch.drop_columns([op_column])
    return kept.append_column(pa.field(OP_COLUMN, pa.uint8()), codes)
