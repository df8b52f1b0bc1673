"""Sizes of the record batches that a task gives to Spark.

A server sends batches of about 1 MB. Spark has a fixed cost for each batch, so that small ones are combined:
batches of 10,000 rows take a fifth longer than those of `BATCH_ROWS`.
"""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from nyala.client.read.batch_groups import grouped

BATCH_ROWS = 250_000
"""Number of rows from which a batch is passed to Spark."""
BATCH_BYTES = 32 << 20
"""Number of bytes from which a batch is passed to Spark, whatever its rows; two are in memory at once."""


def combined(
    batches: Iterable[pa.RecordBatch], rows: int = BATCH_ROWS, size: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Return the same rows in the same order in larger batches.

    Args:
        batches: with equal schemas.
        rows: number of rows from which a batch is yielded.
        size: number of bytes from which a batch is yielded.
    """
    return map(_one, grouped(batches, rows, size))


def empty_rows(count: int, schema: pa.Schema, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    """Yield batches whose values are all null.

    Args:
        count: number of rows of all batches.
        schema: schema of the batches.
        rows: maximum number of rows of a batch.
    """
    size = min(rows, count)
    whole = pa.RecordBatch.from_arrays([pa.nulls(size, f.type) for f in schema], schema=schema)
    while count > 0:
        yield whole.slice(0, count)
        count -= size


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
