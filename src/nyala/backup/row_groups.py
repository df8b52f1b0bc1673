"""Rows of a Parquet file in batches of limited memory, whatever the size of its rows."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

BATCH_ROWS = 50_000
"""Maximum number of rows of a batch."""
BATCH_BYTES = 16 << 20
"""Approximate maximum number of bytes of a batch, by the size of its row group; one row always fits."""


def batches_of(
    file: pq.ParquetFile, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file in their order. A batch has rows of one row group.

    Args:
        file: opened.
        columns: names; None: all.

    Raises:
        pa.ArrowException, OSError: it cannot be read.
    """
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        rows = BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)
        yield from file.iter_batches(
            max(1, min(BATCH_ROWS, rows)), row_groups=[number], columns=columns
        )
