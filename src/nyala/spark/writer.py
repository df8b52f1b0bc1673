"""Batch writes with an exactly-once effect per task.

Every task writes under a client id derived from the job's write id and its partition number, and numbers
its operations in order. A task that Spark runs again (or twice at once) repeats the same operations under
the same numbers, and the tablets execute each once. This needs rows that come in the same order at every
try: sort within partitions by a total order where the source does not give one.

Options: `op` (upsert by default, or any other write); `op_column` (a column that names each row's op); or
`kind_column` with one option `kind.<value>` = "<op>: <column>, ..." for each value: rows of a kind are
written with that op, and only that kind's columns (the key is always there). Rows are written in order.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from nyala.client.client import connect
from nyala.client.table import Table
from nyala.client.writing import OPS
from nyala.common.errors import InvalidArgument

KIND_PREFIX = "kind."
TIMEOUT_MS = 120_000


@dataclass(frozen=True, slots=True)
class Kind:
    """How rows of one kind are written."""

    op: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What one write job does.

    Attributes:
        table: name of the table.
        masters: their addresses.
        op: of every row, when neither column is given.
        op_column: names each row's op; empty: none.
        kind_column: names each row's kind; empty: none.
        kinds: by the kind's value.
        write_id: names the job: all tries of its tasks share it.
    """

    table: str
    masters: str
    op: str
    op_column: str
    kind_column: str
    kinds: dict[str, Kind]
    write_id: str

    @classmethod
    def of(
        cls, table: str, masters: str, options: Mapping[str, str], columns: Sequence[str]
    ) -> "WriteOptions":
        """Check the options of a write against the frame's columns and the table, in the driver.

        Raises:
            InvalidArgument: an unknown op, a column that is not in the frame or the table.
            NotFound: no such table.
        """
        op, op_column = options.get("op", "upsert"), options.get("op_column", "")
        kind_column = options.get("kind_column", "")
        kinds = {
            name.removeprefix(KIND_PREFIX): _kind(name, text)
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
            if column not in columns:
                raise InvalidArgument(
                    f"the frame has no column {column!r}; it has: {', '.join(columns)}"
                )
        with connect(masters) as client:
            schema = client.table(table).schema
        for column in columns:
            if column not in special and column not in schema.names:
                raise InvalidArgument(
                    f"table {table!r} has no column {column!r}; its columns are: {', '.join(schema.names)}"
                )
        return cls(table, masters, op, op_column, kind_column, kinds, os.urandom(16).hex())


def _kind(name: str, text: str) -> Kind:
    op, _, columns = text.partition(":")
    if op.strip() not in OPS:
        raise InvalidArgument(
            f"option {name}={text!r}: write '<op>: <column>, ...'; ops: {', '.join(OPS)}"
        )
    return Kind(op.strip(), tuple(c.strip() for c in columns.split(",") if c.strip()))


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task that succeeded tells the driver."""

    rows: int
    timestamp: int


class TableWriter(DataSourceArrowWriter):
    """Writes one frame. Pickled to every task."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskDone:
        """Write the rows of one task, in order; any row error fails the task and the job."""
        context = TaskContext.get()
        assert context is not None, "a writer runs in a task"
        name = f"{self._options.write_id} {context.partitionId()}"
        client_id = hashlib.sha256(name.encode()).digest()[:16]
        done = TaskDone(0, 0)
        with connect(self._options.masters, client_id=client_id, timeout_ms=TIMEOUT_MS) as client:
            table = client.table(self._options.table)
            for batch in iterator:
                for result in self._write_batch(table, batch):
                    done.rows += result[0]
                    done.timestamp = max(done.timestamp, result[1])
        return done

    def _write_batch(self, table: Table, batch: pa.RecordBatch) -> Iterator[tuple[int, int]]:
        options = self._options
        if options.op_column:
            result = table.write(batch, options.op_column).raise_for_errors()
            yield result.rows, result.timestamp
            return
        pieces = runs(batch, options.kind_column) if options.kind_column else [("", batch)]
        for value, piece in pieces:
            kind = options.kinds.get(value)
            if kind is None and options.kind_column:
                raise InvalidArgument(f"a row has kind {value!r}; there is no option kind.{value}")
            if kind is not None:
                keys = [k for k in table.primary_key if k not in kind.columns]
                piece = piece.select([*keys, *kind.columns])
            write = getattr(table, kind.op if kind else options.op)
            result = write(piece).raise_for_errors()
            yield result.rows, result.timestamp

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks succeeded: their rows were acknowledged one by one; nothing is left to do."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Some task failed: rows that were acknowledged stay; run the job again with an idempotent op."""


def runs(batch: pa.RecordBatch, column: str) -> list[tuple[str, pa.RecordBatch]]:
    """Cut a batch where a column's value changes; return (value, piece) in row order."""
    values = batch.column(column).cast(pa.string())
    if values.null_count:
        raise InvalidArgument(f"column {column!r} is null in {values.null_count} rows")
    changed = pc.not_equal(values.slice(1), values.slice(0, max(0, len(values) - 1)))
    starts = (
        [0, *(int(i) + 1 for i in pc.indices_nonzero(changed).to_pylist())] if len(values) else []
    )
    ends = [*starts[1:], len(values)]
    rest = [n for n in batch.schema.names if n != column]
    return [
        (values[a].as_py(), batch.slice(a, b - a).select(rest))
        for a, b in zip(starts, ends, strict=True)
    ]
