"""Rows of a write: the user's data, converted to the table's types."""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nyala.client.caller import Caller
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.read.read_spec import key_names
from nyala.client.results import WriteResult, errors_table
from nyala.client.write.input_batches import awaited_pieces, in_memory, pieces, until
from nyala.client.write.pending_call import Written
from nyala.client.write.sequencer import OP_COLUMN
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


@dataclass(slots=True)
class PreparedRows:
    """Rows of one write.

    Attributes:
        op: a `WriteOp` of the wire.
        data: as for `Table.upsert`.
        cast: converts the data, or a piece of them.
        all_or_nothing: one failing row voids the others of its request.
        watch: progress, and the event that stops the write.
    """

    op: int
    data: Any
    cast: _Cast
    all_or_nothing: bool
    watch: Watch

    @property
    def in_memory(self) -> bool:
        """True if all rows can be converted at once.

        Raises:
            InvalidArgument: the data are no rows.
        """
        return in_memory(self.data)

    @property
    def is_awaited(self) -> bool:
        """True if the rows come from an asynchronous iterable."""
        return isinstance(self.data, AsyncIterable)

    def converted(self) -> list[pa.RecordBatch]:
        """Return all rows of data that are in memory."""
        return self.cast(self.data, 0)

    def batches(self, made: list[pa.RecordBatch] | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows batch by batch, until the write is stopped.

        Args:
            made: rows that are converted already; None: those of a stream, whose pieces are fetched.
        """
        watch = self.watch
        if made is None:
            return watch.counted(_cast_pieces(self.data, self.cast, watch))
        slices = iter(made) if self.all_or_nothing or not watch.active else _slices(made)
        return watch.counted(until(slices, watch.stopped))

    async def awaited_batches(self, caller: Caller) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the rows of an asynchronous iterable batch by batch, until the write is stopped.

        Args:
            caller: makes the call; a coroutine on the loop.
        """
        row = 0
        async with aclosing(awaited_pieces(self.data, self.watch.stopped)) as found:
            async for piece in found:
                for batch in await caller.compute(self.cast, piece, row):
                    row += batch.num_rows
                    yield batch
                    self.watch.reached(row)

    def result(self, done: Written) -> WriteResult:
        """Return the result of the write."""
        return WriteResult(
            done.rows, errors_table(done.errors), done.timestamp, self.watch.ended_early
        )


def rows_of(
    table: OpenTable, op: str, data: Any, all_or_nothing: bool, how: WriteArguments
) -> PreparedRows:
    """Return the rows of a write with one operation; raises as `Table.upsert`.

    Args:
        table: written to.
        op: a key of `OPS`.
        data: as for `Table.upsert`.
        all_or_nothing: as for `Table.upsert`.
        how: conversions, progress, the event that stops the write, and its transaction.
    """
    conversion, watch = split_arguments(how, f"{op} into {table.name}")
    if how.get("txn") is not None:
        _check_ops([op], table.name)

    def cast(piece: Any, row: int) -> list[pa.RecordBatch]:
        schema = table.schema  # it may change while a stream is written
        batches = to_batches(piece, schema, first_row=row, conversion=conversion)
        if op in _DELETES:
            return [b.select(key_names(schema)) for b in batches]
        return batches

    return PreparedRows(OPS[op], data, cast, all_or_nothing, watch)


def mixed_rows_of(
    table: OpenTable, data: Any, op_column: str, all_or_nothing: bool, how: WriteArguments
) -> PreparedRows:
    """Return the rows of a write that each name their operation; raises as `Table.write`.

    Args:
        table: written to.
        data: as for `Table.upsert`, with `op_column`.
        op_column: name of a string column with keys of `OPS`.
        all_or_nothing: as for `Table.upsert`.
        how: as for `rows_of`.
    """
    conversion, watch = split_arguments(how, f"write to {table.name}")
    staged = how.get("txn") is not None
    schema = table.schema
    if not isinstance(op_column, str) or op_column in schema.by_name:
        raise InvalidArgument(
            f"op_column={op_column!r}: it names a column of the data with the operation of each row, and "
            "none of the table's; rename that column of the data"
        )

    def cast(piece: Any, row: int) -> list[pa.RecordBatch]:
        made = []
        batches = to_batches(piece, schema, extra=[op_column], first_row=row, conversion=conversion)
        for batch in batches:
            if staged:
                _check_ops(pc.unique(batch.column(op_column)).to_pylist(), table.name)
            made.append(_with_codes(batch, op_column, row))
            row += batch.num_rows
        return made

    return PreparedRows(pb.MIXED, data, cast, all_or_nothing, watch)


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
