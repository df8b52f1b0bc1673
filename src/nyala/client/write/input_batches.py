"""Input of a write in pieces: data in memory as one, a stream piece by piece.

A stream is never read as a whole: the next piece is fetched when the write has room for it.
"""

import os
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from typing import Any, TypeVar

import pyarrow as pa

from nyala.common.batches import is_frame
from nyala.common.errors import InvalidArgument

T = TypeVar("T")

DICTS_PER_BATCH = 1_000
"""Number of dicts from an iterable that are collected into one batch."""

DATASET_BATCH_ROWS = 10_000
"""Number of rows of a dataset that are read at a time."""


def in_memory(data: Any) -> bool:
    """Return whether all of the data can be checked before anything is sent."""
    if isinstance(data, pa.Table | pa.RecordBatch) or is_frame(data):
        return True
    if isinstance(data, str | os.PathLike):
        raise InvalidArgument(
            f"{data!r} is a path or a text, not rows; for a file pass pyarrow.dataset.dataset(path), which "
            "is read piece by piece; delete_where and update_where take a condition"
        )
    if hasattr(data, "__arrow_c_stream__") or isinstance(data, AsyncIterable) or _is_dataset(data):
        return False
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return not (len(data) and _is_table(data[0]))
    return hasattr(data, "__arrow_c_array__") or not _is_iterable(data)


def until(items: Iterator[T], stopped: Callable[[], bool]) -> Iterator[T]:
    """Yield items until `stopped()`, which is asked before each of them is fetched."""
    while not stopped():
        try:
            item = next(items)
        except StopIteration:
            return
        yield item


def pieces(data: Any, stopped: Callable[[], bool]) -> Iterator[Any]:
    """Yield the pieces of what is not `in_memory`: batches, or whatever the iterable yields.

    The first piece of an Arrow stream has no rows: its columns can be checked before anything is sent. When
    the pieces end because of `stopped`, everything that was fetched was yielded.

    Args:
        data: a stream, a dataset, or an iterable.
        stopped: returns whether nothing more is to be fetched.

    Raises:
        InvalidArgument: the stream cannot be read.
    """
    if _is_dataset(data):
        yield from _batches(_reader_of(data), stopped)
        return
    if hasattr(data, "__arrow_c_stream__"):
        yield from _batches(data, stopped)
        return
    if isinstance(data, AsyncIterable):
        raise InvalidArgument(
            "an asynchronous iterable of rows is read on an event loop; pass it to a table of nyala.aio, or "
            "pass an iterable"
        )
    dicts = _Dicts()
    for item in until(iter(data), stopped):
        yield from dicts.add(item)
    yield from dicts.rest()


async def awaited_pieces(
    data: AsyncIterable[Any], stopped: Callable[[], bool]
) -> AsyncGenerator[Any, None]:
    """Yield the pieces of an asynchronous iterable; see `pieces`.

    Args:
        data: what it yields is rows, or dicts.
        stopped: returns whether nothing more is to be fetched.
    """
    dicts, items = _Dicts(), aiter(data)
    while not stopped():
        try:
            item = await anext(items)
        except StopAsyncIteration:
            break
        for piece in dicts.add(item):
            yield piece
    for piece in dicts.rest():
        yield piece


class _Dicts:
    """Dicts of an iterable, which become batches."""

    def __init__(self) -> None:
        self._held: list[Any] = []

    def add(self, item: Any) -> Iterator[Any]:
        """Yield the pieces that are complete with one more item of the iterable."""
        if isinstance(item, Mapping):
            self._held.append(item)
            if len(self._held) == DICTS_PER_BATCH:
                yield from self.rest()
            return
        yield from self.rest()
        yield item

    def rest(self) -> Iterator[Any]:
        """Yield the dicts that are held as the last piece."""
        if self._held:
            held, self._held = self._held, []
            yield held


def _batches(data: Any, stopped: Callable[[], bool]) -> Iterator[pa.RecordBatch]:
    try:
        reader = (
            data
            if isinstance(data, pa.RecordBatchReader)
            else pa.RecordBatchReader.from_stream(data)
        )
        yield pa.RecordBatch.from_pylist([], reader.schema)
        yield from until(reader, stopped)
    except (pa.ArrowException, ValueError, TypeError) as err:
        raise InvalidArgument(f"the stream of rows cannot be read: {err}") from err


def _is_dataset(data: Any) -> bool:
    kind = getattr(sys.modules.get("pyarrow.dataset"), "Dataset", None)
    return kind is not None and isinstance(data, kind)


def _reader_of(dataset: Any) -> pa.RecordBatchReader:
    """Return a reader of a dataset that reads little ahead: Arrow's default is 16 batches of 4 files."""
    try:
        scanner = dataset.scanner(
            batch_size=DATASET_BATCH_ROWS,
            batch_readahead=1,
            fragment_readahead=1,
            use_threads=False,
        )
        return scanner.to_reader()
    except (pa.ArrowException, ValueError, OSError) as err:
        raise InvalidArgument(f"the dataset cannot be read: {err}; check its files") from err


def _is_table(item: Any) -> bool:
    arrow = hasattr(item, "__arrow_c_stream__") or hasattr(item, "__arrow_c_array__")
    return arrow or isinstance(item, pa.RecordBatch) or is_frame(item)


def _is_iterable(data: Any) -> bool:
    return isinstance(data, Iterable) and not isinstance(data, str | bytes | Mapping | Set)
