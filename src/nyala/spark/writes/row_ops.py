"""Calls that write the batches of a task, by the options of the job."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from nyala.client.results import WriteResult
from nyala.client.table import Table
from nyala.common.errors import InvalidArgument
from nyala.spark.writes.options import WriteOptions
from nyala.spark.writes.task import in_runs

RowOps = tuple[Sequence[str], Callable[[Table], WriteResult]]
"""The ops of some rows, and the function that writes them."""


def row_ops(
    options: WriteOptions, keys: Sequence[str], batch: pa.RecordBatch, **how: Any
) -> Iterator[RowOps]:
    """Yield ops and calls that write a batch, in order.

    Args:
        options: of the job.
        keys: names of the key columns.
        batch: rows of the frame.
        **how: passed to the writes: `txn`.

    Raises:
        InvalidArgument: a row of an unknown kind.
    """
    if options.op_column:
        ops = batch.column(options.op_column).unique().to_pylist()
        yield [str(op) for op in ops], lambda table: table.write(batch, options.op_column, **how)
    elif options.kind_column:
        yield from _by_kind(options, keys, batch, how)
    else:
        yield [options.op], partial(_send, options.op, batch, how)


def _by_kind(
    options: WriteOptions, keys: Sequence[str], batch: pa.RecordBatch, how: dict[str, Any]
) -> Iterator[RowOps]:
    spelled: dict[str, str] = {}
    pieces = in_runs(batch, options.kind_column, keys)
    for value, _ in pieces:
        if value.lower() not in options.kinds:
            raise InvalidArgument(f"a row has kind {value!r}; there is no option kind.{value}")
        if (other := spelled.setdefault(value.lower(), value)) != value:
            raise InvalidArgument(
                f"rows have the kinds {other!r} and {value!r}, and Spark passes option names in "
                "lower case only; give them other names"
            )
    for value, piece in pieces:
        kind = options.kinds[value.lower()]
        rows = piece.select([*(k for k in keys if k not in kind.columns), *kind.columns])
        yield [kind.op], partial(_send, kind.op, rows, how)


def _send(op: str, rows: pa.RecordBatch, how: dict[str, Any], table: Table) -> WriteResult:
    result: WriteResult = getattr(table, op)(rows, **how)
    return result
