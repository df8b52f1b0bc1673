"""Input of a write in pieces: data in memory as one, a stream piece by piece.

A stream is never read as a whole: the next piece is fetched when the write has room for it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import pyarrow as pa

from nyala.common.batches import is_frame
from nyala.common.errors import InvalidArgument

DICTS_PER_BATCH = 1_000
"""Number of dicts from an iterable that are collected into one batch."""


def in_memory(data: Any) -> bool:
    """Return whether all of the data can be checked before anything is sent."""
    if isinstance(data, pa.Table | pa.RecordBatch) or is_frame(data):
        return True
    if hasattr(data, "__arrow_c_stream__"):
        return False
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return not (len(data) and _is_table(data[0]))
    return hasattr(data, "__arrow_c_array__") or not _is_iterable(data)


def pieces(data: Any) -> Iterator[Any]:
    """Yield the pieces of what is not `in_memory`: batches, or whatever the iterable yields.

    The first piece of an Arrow stream has no rows: its columns can be checked before anything is sent.

    Raises:
        InvalidArgument: the stream cannot be read.
    """
    if hasattr(data, "__arrow_c_stream__"):
        yield from _batches(data)
        return
    dicts: list[Any] = []
    for item in data:
        if isinstance(item, Mapping):
            dicts.append(item)
            if len(dicts) == DICTS_PER_BATCH:
                yield dicts
                dicts = []
            continue
        if dicts:
            yield dicts
            dicts = []
        yield item
    if dicts:
        yield dicts


def _batches(data: Any) -> Iterator[pa.RecordBatch]:
    try:
        reader = (
            data
            if isinstance(data, pa.RecordBatchReader)
            else pa.RecordBatchReader.from_stream(data)
        )
        yield pa.RecordBatch.from_pylist([], reader.schema)
        yield from reader
    except (pa.ArrowException, ValueError, TypeError) as err:
        raise InvalidArgument(f"the stream of rows cannot be read: {err}") from err


def _is_table(item: Any) -> bool:
    arrow = hasattr(item, "__arrow_c_stream__") or hasattr(item, "__arrow_c_array__")
    return arrow or isinstance(item, pa.RecordBatch) or is_frame(item)


def _is_iterable(data: Any) -> bool:
    return isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping | Set)
