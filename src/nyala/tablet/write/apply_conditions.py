"""Deletes by condition of a transaction, as its commit applies them. Lane APPLY.

A condition is text for one version of the schema. It selects the rows that are live when it is applied, those
of earlier batches of the transaction included, so every replica ends the same versions. Rows are selected as
in a scan, whole chunks at a time; nothing looks at a row from Python.
"""

import numpy as np

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.expressions.predicate import TRUE
from nyala.common.expressions.where import parse
from nyala.common.schema import Schema
from nyala.tablet.files.replicated_ops import RowError
from nyala.tablet.files.transaction_ops import StageDeleteOp
from nyala.tablet.rows.rowset import Int64s, RowSetView
from nyala.tablet.rows.selection import ScanFilter, select
from nyala.tablet.write.store import RowSet, Store


def condition_errors(schema: Schema, op: StageDeleteOp) -> tuple[RowError, ...]:
    """Return why a delete by condition cannot be staged or prepared; empty: it can.

    Args:
        schema: of the tablet now.
        op: the operation.
    """
    if op.schema_version != schema.version:
        text = (
            f"the condition was written for schema version {op.schema_version}, and the table has version "
            f"{schema.version}; open the table again and repeat the transaction"
        )
        return (RowError(0, "schema_changed", text),)
    try:
        parse(op.where, schema)
    except (InvalidArgument, NotFound) as err:
        return (RowError(0, "bad_condition", err.message),)
    return ()


def delete_matching(store: Store, where: str, at: int) -> None:
    """End the live versions that match a condition.

    A row for which the condition cannot be evaluated stays: what was decided must be applied.

    Args:
        store: the tablet's versions.
        where: the condition, which `condition_errors` accepts.
        at: commit time; no version begins or ends above it.

    Raises:
        Corrupt: a file is damaged; nothing was changed.
    """
    wanted = ScanFilter(at, parse(where, store.schema), lenient=True)
    rowsets: list[RowSet] = [*store.disks, *store.frozen, store.mem]
    if wanted.where == TRUE:  # no version begins above the commit time: all live ones are visible
        store.live -= sum(r.end_stamps.end_all(r.rows, at) for r in rowsets if r.live)
        return
    found = [(r, _live_rows(r.view(), store.schema, wanted)) for r in rowsets if r.live]
    for rowset, rows in found:
        rowset.end_stamps.end(rows, np.full(len(rows), at, np.uint64))
        store.live -= len(rows)


def _live_rows(rowset: RowSetView, schema: Schema, wanted: ScanFilter) -> Int64s:
    """Return the row numbers of the selected versions of a rowset, ascending."""
    starts = rowset.chunks.starts
    parts = [s.rows() + int(starts[s.chunk]) for s in select(0, rowset, schema, wanted)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
