"""Batches collected to groups of a size, for readers that have a cost for each of them."""

from collections.abc import Iterable, Iterator

import pyarrow as pa


def grouped(
    batches: Iterable[pa.RecordBatch], rows: int, size: int
) -> Iterator[list[pa.RecordBatch]]:
    """Yield batches in their order, in lists of one or more.

    Args:
        batches: any.
        rows: number of rows from which a list is yielded.
        size: number of bytes from which a list is yielded.
    """
    held: list[pa.RecordBatch] = []
    held_rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        held_rows += batch.num_rows
        held_bytes += batch.nbytes
        if held_rows >= rows or held_bytes >= size:
            yield held
            held, held_rows, held_bytes = [], 0, 0
    if held:
        yield held
