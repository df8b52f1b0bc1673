"""Batch writes with an exactly-once effect per task, within the limits of `spark/task.py`.

Options: `op` (upsert by default, or any other write); `op_column` (a column that names each row's op); or
`kind_column` with one option `kind.<value>` = "<op>: <column>, ..." for each value: rows of a kind are
written with that op, and only that kind's columns (the key is always there). Rows of one key are written in
order. Spark passes option names in lower case, so values are looked up without regard to case.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from nyala.client.client import connect
from nyala.client.results import WriteResult
from nyala.client.row_writer import OPS
from nyala.client.table import Table
from nyala.common.casting import check_types
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.schema import Schema
from nyala.spark.task import TaskWrites, in_runs

KIND_PREFIX = "kind."


@dataclass(frozen=True, slots=True)
class RowKinds:
    """Operation and columns of the rows of one kind."""

    op: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of one write job.

    Attributes:
        table: name of the table.
        masters: their addresses.
        op: operation of every row, when neither column is given.
        op_column: names each row's op; empty: none.
        kind_column: names each row's kind; empty: none.
        kinds: by the kind's value in lower case.
        write_id: names the job: all tries of its tasks share it.
        since: hybrid time before which none of them wrote.
    """

    table: str
    masters: str
    op: str
    op_column: str
    kind_column: str
    kinds: dict[str, RowKinds]
    write_id: str
    since: int

    @classmethod
    def of(
        cls, table: str, masters: str, options: Mapping[str, str], frame: pa.Schema
    ) -> "WriteOptions":
        """Check the options of a write against the frame's columns and the table, in the driver.

        Args:
            table: name of the table.
            masters: their addresses.
            options: as Spark gives them.
            frame: its columns.

        Raises:
            InvalidArgument: an unknown op, a column that is not in the frame or the table.
            SchemaMismatch: a column whose type does not convert, or a missing key column.
            NotFound: no such table.
        """
        op, op_column = options.get("op", "upsert"), options.get("op_column", "")
        kind_column = options.get("kind_column", "")
        kinds = {
            name.removeprefix(KIND_PREFIX).lower(): _kind(name, text)
            for name, text in options.items()
            if name.startswith(KIND_PREFIX)
        }
        if op not in OPS:
            raise InvalidArgument(f"option op={op!r}; ops are: {', '.join(OPS)}")
        special = [c for c in (op_column, kind_column) if c]
        if len(special) > 1 or bool(kind_column) != bool(kinds):
            raise InvalidArgument(
                "give op_column, or kind_column with kind.<value> options, or neither"
            )
        for column in [*special, *(c for k in kinds.values() for c in k.columns)]:
            if column not in frame.names:
                raise InvalidArgument(
                    f"the frame has no column {column!r}; it has: {', '.join(frame.names)}"
                )
        with connect(masters) as client:
            schema, since = client.table(table).definition, client.now()
        _check_columns(table, schema, frame, special)
        write_id = os.urandom(16).hex()
        return cls(table, masters, op, op_column, kind_column, kinds, write_id, since)


def _check_columns(table: str, schema: Schema, frame: pa.Schema, special: list[str]) -> None:
    """Refuse a frame of which no row could be written, before any task runs."""
    for key in schema.key_columns:
        if key.name not in frame.names:
            raise SchemaMismatch(
                f"the frame lacks the key column {key.name!r} of table {table!r}; it has: "
                f"{', '.join(frame.names)}"
            )
    for column in special:
        if not pa.types.is_string(frame.field(column).type):
            raise SchemaMismatch(
                f"column {column!r} has type {frame.field(column).type}; it names each row's op or kind: "
                "make it a string"
            )
    for field in frame:
        if field.name in special:
            continue
        if field.name not in schema.by_name:
            raise InvalidArgument(
                f"table {table!r} has no column {field.name!r}; its columns are: {', '.join(schema.by_name)}"
            )
        stored = schema.column(field.name).type
        if pa.types.is_decimal(field.type) and pa.types.is_floating(stored):
            raise SchemaMismatch(
                f"column {field.name!r} has type {field.type}, but the table stores {stored}: decimal "
                "fractions are not binary ones, and a literal such as 0.5 is a decimal in Spark SQL; round "
                f"it to the nearest value: cast({field.name} as {stored}), or col.cast({str(stored)!r})"
            )
        check_types(field.type, stored, f"column {field.name!r}")


def _kind(name: str, text: str) -> RowKinds:
    op, _, columns = text.partition(":")
    if op.strip() not in OPS:
        raise InvalidArgument(
            f"option {name}={text!r}: write '<op>: <column>, ...'; ops: {', '.join(OPS)}"
        )
    return RowKinds(op.strip(), tuple(c.strip() for c in columns.split(",") if c.strip()))


@dataclass
class TaskDone(WriterCommitMessage):
    """Result of a successful task, sent to the driver."""

    rows: int
    timestamp: int


_Write = tuple[Sequence[str], Callable[[Table], WriteResult]]
"""The ops of some rows, and the function that writes them."""


class TableWriter(DataSourceArrowWriter):
    """Writes one frame. Pickled to every task."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Write the rows of one task; any row error fails the task and the job."""
        context = TaskContext.get()
        assert context is not None, "a writer runs in a task"
        options = self._options
        name = f"{options.write_id} {context.partitionId()}"
        done = TaskDone(0, 0)
        with TaskWrites(options.masters, options.table, name, options.since) as task:
            for batch in iterator:
                for ops, send in self._writes(task, batch):
                    result = task.write(ops, send).raise_for_errors()
                    done.rows += result.rows
                    done.timestamp = max(done.timestamp, result.timestamp)
        return done

    def _writes(self, task: TaskWrites, batch: pa.RecordBatch) -> Iterator[_Write]:
        """Yield ops and calls that write a batch, in order."""
        options = self._options
        if options.op_column:
            ops = batch.column(options.op_column).unique().to_pylist()
            yield [str(op) for op in ops], lambda table: table.write(batch, options.op_column)
        elif options.kind_column:
            yield from self._by_kind(task, batch)
        else:
            yield [options.op], partial(_send, options.op, batch)

    def _by_kind(self, task: TaskWrites, batch: pa.RecordBatch) -> Iterator[_Write]:
        column, keys = self._options.kind_column, task.primary_key
        spelled: dict[str, str] = {}
        pieces = in_runs(batch, column, keys)
        for value, _ in pieces:
            if value.lower() not in self._options.kinds:
                raise InvalidArgument(f"a row has kind {value!r}; there is no option kind.{value}")
            if (other := spelled.setdefault(value.lower(), value)) != value:
                raise InvalidArgument(
                    f"rows have the kinds {other!r} and {value!r}, and Spark passes option names in "
                    "lower case only; give them other names"
                )
        for value, piece in pieces:
            kind = self._options.kinds[value.lower()]
            rows = piece.select([*(k for k in keys if k not in kind.columns), *kind.columns])
            yield [kind.op], partial(_send, kind.op, rows)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks succeeded: their rows were acknowledged one by one; nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed: rows that were acknowledged stay; run the job again with an idempotent op."""


def _send(op: str, rows: pa.RecordBatch, table: Table) -> WriteResult:
    result: WriteResult = getattr(table, op)(rows)
    return result
