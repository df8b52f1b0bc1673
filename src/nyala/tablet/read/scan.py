"""Unordered scans, and counts: selection of rows, then the other columns of the selected rows.

Lane COMPUTE.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from nyala.common.schema import Column, Schema, arrow_schema
from nyala.tablet.rows.rowset import RowSetView, empty_columns
from nyala.tablet.rows.selection import EVERY_KEY, ScanFilter, Selected, select

MOSTLY = 0.8
"""From this part of a chunk on, copying runs of neighbours is faster than gathering rows."""


def read(
    rowsets: Sequence[RowSetView], selected: Selected, columns: Sequence[Column], schema: pa.Schema
) -> pa.RecordBatch:
    """Return the wanted columns of selected rows, as `schema` has them.

    Args:
        rowsets: rowsets of the tablet.
        selected: rows by rowset.
        columns: wanted, in this order.
        schema: schema of the tablet.
    """
    if not columns:
        return empty_columns(selected.size)
    chunks, count = rowsets[selected.number].chunks, selected.end - selected.begin
    arrays = [chunks.column(selected.chunk, c) for c in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    if selected.flags is not None and selected.size < MOSTLY * count:
        return batch.take(pa.array(selected.rows()))
    if count < batch.num_rows:
        batch = batch.slice(selected.begin, count)
    if selected.flags is None:
        return batch
    return batch.filter(pa.array(selected.flags.view(np.bool_)))


def scan(
    rowsets: Sequence[RowSetView], schema: Schema, wanted: ScanFilter, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Return visible matching rows in storage order.

    Args:
        rowsets: rowsets of the tablet.
        schema: schema of the tablet.
        wanted: time, predicate and keys.
        columns: wanted, in this order.
    """
    fields = arrow_schema(columns)
    for number, rowset in enumerate(rowsets):
        for selected in select(number, rowset, schema, wanted):
            yield read(rowsets, selected, columns, fields)


def count(rowsets: Sequence[RowSetView], schema: Schema, wanted: ScanFilter) -> int:
    """Return the number of visible matching rows; without a predicate no column is read.

    Args:
        rowsets: rowsets of the tablet.
        schema: schema of the tablet.
        wanted: time, predicate and keys.
    """
    total = 0
    for number, rowset in enumerate(rowsets):
        if wanted.where is None and wanted.within == EVERY_KEY:
            known = rowset.lifetimes.count_at(wanted.at)
            if known is not None:
                total += known
                continue
        total += sum(s.size for s in select(number, rowset, schema, wanted))
    return total
