"""Size limit of one request: the servers' `write_max_bytes` less its overhead."""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.common.errors import TooLarge

MESSAGE_BYTES = 1024
COLUMN_BYTES = 256
"""Bytes of an Arrow message besides its rows, and of each column's lengths, offsets and padding."""


def max_row_bytes(table: OpenTable, columns: int, wanted: int) -> int:
    """Return the maximum bytes of rows in one request.

    Args:
        table: table of the rows, with the servers' limit if that is known.
        columns: columns of the rows.
        wanted: limit of the client itself.
    """
    limit = table.write_max_bytes
    if not limit:
        return wanted
    return min(wanted, max(limit // 4, limit - MESSAGE_BYTES - COLUMN_BYTES * columns))


def refusal(
    table: OpenTable, batch: pa.RecordBatch, sent: int = 0, waiting: Iterable[pa.RecordBatch] = ()
) -> TooLarge | None:
    """Return the error of the largest row if no request has room for it; None: each row may fit.

    Args:
        table: table of the rows.
        batch: the rows.
        sent: rows of the same call that were sent before.
        waiting: rows that were accepted and not sent yet.
    """
    limit = table.write_max_bytes
    if not limit or batch.nbytes <= limit:
        return None
    sizes = _row_bytes(batch)
    worst, first = int(sizes.argmax()), sent + sum(b.num_rows for b in waiting)
    size = int(sizes[worst])
    if size <= limit:
        return None
    return TooLarge(
        f"row {first + worst} has {size} bytes, and servers take write_max_bytes ({limit}) in one write: "
        "write its columns in several upserts, or raise write_max_bytes on all servers",
        {"limit": str(limit), "size": str(size), "row": str(first + worst)},
    )


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the minimum size of each row, in bytes."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
            lengths = pc.fill_null(pc.binary_length(column), 0)
            sizes += lengths.to_numpy(zero_copy_only=False)
        elif pa.types.is_fixed_size_binary(column.type) or pa.types.is_primitive(column.type):
            sizes += column.type.bit_width // 8
    return sizes
