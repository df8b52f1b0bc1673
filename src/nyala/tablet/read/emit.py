"""Batches of the requested size, from batches of any size."""

from collections.abc import Iterable, Iterator

import pyarrow as pa

from nyala.tablet.rows.rowset import empty_columns


def emit(
    batches: Iterable[pa.RecordBatch],
    *,
    batch_rows: int,
    batch_bytes: int,
    limit: int | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `batches` in order, in batches of the requested size.

    Args:
        batches: batches of one schema; empty ones are skipped.
        batch_rows: maximum rows of a batch.
        batch_bytes: maximum bytes of a batch with more than one row.
        limit: maximum rows in all; None: all.
    """
    assert min(batch_rows, batch_bytes) > 0, f"{batch_rows} rows, {batch_bytes} bytes"
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for piece, piece_bytes in _pieces(_limited(batches, limit), batch_rows, batch_bytes):
        if waiting and (rows + piece.num_rows > batch_rows or size + piece_bytes > batch_bytes):
            yield _join(waiting)
            waiting, rows, size = [], 0, 0
        waiting.append(piece)
        rows += piece.num_rows
        size += piece_bytes
    if waiting:
        yield _join(waiting)


def _limited(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    left = limit
    for batch in batches:
        if left is not None:
            batch = batch.slice(0, left)
            left -= batch.num_rows
        if batch.num_rows:
            yield batch
        if left == 0:
            return


def _pieces(
    batches: Iterable[pa.RecordBatch], batch_rows: int, batch_bytes: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield batches within the limits, and the bytes of each: Arrow takes 30 us to count nine columns."""
    for batch in batches:
        pending = [batch]
        while pending:
            piece = pending.pop()
            count, size = piece.num_rows, piece.nbytes
            if count <= batch_rows and (size <= batch_bytes or count == 1):
                yield piece, size
                continue
            fits = max(1, min(batch_rows, count * batch_bytes // max(size, 1), count - 1))
            cut = fits if fits * 2 <= count else count // 2
            pending += [piece.slice(cut), piece.slice(0, cut)]


def _join(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    if not batches[0].num_columns:
        return empty_columns(sum(b.num_rows for b in batches))
    return pa.concat_batches(batches)
