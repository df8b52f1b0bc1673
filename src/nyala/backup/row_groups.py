"""Rows of a Parquet file in batches of limited memory, whatever the size of rows and row groups."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 50_000
"""Maximum number of rows of a batch."""
BATCH_BYTES = 16 << 20
"""Approximate maximum number of bytes of a batch, by the size of its row group; one row always fits."""
STREAM_BYTES = 1 << 20
"""Bytes of a column that are read at a time. Without this limit its whole part of a row group is read."""


def groups_within(metadata: pq.FileMetaData, size: int, start: int, end: int) -> list[int]:
    """Return the numbers of the row groups that begin in a range of the bytes of a file.

    Each row group is in one of the ranges into which 0 to `size` is divided, whatever the file says.

    Args:
        metadata: of the file.
        size: its bytes.
        start: first byte of the range.
        end: byte after its last one.
    """
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        column = group.column(0) if group.num_columns else None
        offsets = (column.dictionary_page_offset, column.data_page_offset) if column else ()
        first = min((o for o in offsets if o is not None), default=0)
        if start <= min(max(first, 0), size - 1) < end:
            found.append(number)
    return found


def batches_of(
    source: str | Path | BinaryIO,
    columns: Sequence[str] | None = None,
    groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in their order. A batch has rows of one row group.

    Args:
        source: path of the file, or the file, opened; it stays open.
        columns: names; None: all.
        groups: numbers of row groups; None: all.

    Raises:
        pa.ArrowException, OSError: it cannot be read.
    """
    with pq.ParquetFile(source, pre_buffer=False, buffer_size=STREAM_BYTES) as file:
        for number in range(file.num_row_groups) if groups is None else groups:
            group = file.metadata.row_group(number)
            rows = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
            yield from file.iter_batches(
                max(1, min(BATCH_ROWS, rows)), row_groups=[number], columns=columns
            )
