"""Loading one file of a backup into a table: columns by id, rows and changes up to a time, in order."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nyala.backup.row_groups import batches_of
from nyala.client.table import Table
from nyala.common.errors import Corrupt
from nyala.common.partitioning.partition import PartitionSchema, locate
from nyala.common.schema import Schema

OP, TIMESTAMP = "_op", "_timestamp"
PUT, REMOVE = "upsert", "delete_ignore"


@dataclass(frozen=True, slots=True)
class FileLoad:
    """One file, and how its rows are applied.

    Attributes:
        path: of the file.
        source: columns of the table when the rows were written.
        target: columns at the time that is restored, with the ids of the source.
        partition: partitions at that time.
        at: hybrid time that is restored; later changes are skipped.
        changes: the file has changes, else rows of a snapshot.
    """

    path: str
    source: Schema
    target: Schema
    partition: PartitionSchema
    at: int
    changes: bool


def load_file(load: FileLoad, table: Table) -> int:
    """Apply the rows of a file to a table, in their order; return their number.

    It may be repeated: applied again as a whole, a file has the same effect.

    Args:
        load: the file.
        table: that is restored.

    Raises:
        RowErrors: a row that the table does not take.
        Corrupt: the file lacks a column, or cannot be read.
    """
    return table.write(_batches(load), OP).raise_for_errors().rows


def _batches(load: FileLoad) -> Iterator[pa.RecordBatch]:
    """Yield the rows to write, with the operation of each."""
    try:
        for batch in batches_of(load.path):
            made = to_target(load, batch)
            if made.num_rows:
                yield made
    except (KeyError, OSError, pa.ArrowException) as err:
        raise Corrupt(f"{load.path} cannot be read: {err}") from err


def to_target(load: FileLoad, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of a file as rows of the target, with the operation of each.

    Columns are those of the time that is restored: a column that was renamed is found by its id, one that was
    dropped is left out, one that was added later has its read default. Rows without a partition at that time
    are left out: they were in ranges that were dropped before it.

    Args:
        load: the file.
        batch: of it.
    """
    if load.changes:
        batch = batch.filter(pc.less_equal(batch.column(TIMESTAMP), load.at))
    columns = []
    for column in load.target.columns:
        known = load.source.by_id.get(column.id)
        if known is not None:
            columns.append(batch.column(known.name))
            continue
        value = pa.scalar(None, column.type) if column.read_default is None else column.read_default
        columns.append(pa.repeat(value, batch.num_rows))
    names = [c.name for c in load.target.columns]
    ops = _ops(load, batch)
    made = pa.RecordBatch.from_arrays([*columns, ops], [*names, OP])
    if load.partition.range_column_ids and made.num_rows:
        inside = locate(load.target, load.partition, made) >= 0
        made = made.filter(pa.array(inside))
    immutable = any(c.immutable for c in load.target.columns)
    return _replacing(made) if load.changes and immutable else made


def _ops(load: FileLoad, batch: pa.RecordBatch) -> pa.Array:
    if not load.changes:
        return pa.repeat(PUT, batch.num_rows)
    return pc.if_else(pc.equal(batch.column(OP), "delete"), REMOVE, PUT)


def _replacing(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with a delete before each: an upsert does not change immutable columns."""
    rows = np.repeat(np.arange(batch.num_rows), 2)
    taken = batch.take(pa.array(rows))
    first = pa.array(np.arange(len(rows)) % 2 == 0)
    ops = pc.if_else(first, REMOVE, taken.column(OP))
    return taken.set_column(taken.schema.get_field_index(OP), OP, ops)
