"""Merge of the change feeds of several tablets, each in order of time, into one in order of time.

Changes of one time stay together, so that the position after a batch is a time at or below which everything
has been returned. Only a change with very many rows, a dropped range for instance, is returned in parts.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import numpy as np
import pyarrow as pa

from nyala.client.read.ordered_merge import joined, joined_in_order

PARALLEL_STREAMS = 8
"""Maximum number of tablets that are waited for at the same time."""
PART_ROWS = 65_536
"""Rows of one time that a stream collects before they are returned in parts."""
PART_BYTES = 8 << 20
"""Bytes of such rows."""


class TimedStream:
    """The changes of one tablet, in order of time.

    Args:
        batches: of the tablet.
        schema: their schema.

    Attributes:
        ended: the stream has no more batches.
    """

    def __init__(self, batches: AsyncIterator[pa.RecordBatch], schema: pa.Schema) -> None:
        self.ended = False
        self._batches = batches
        self._pending = empty_batch(schema)
        self._schema = schema

    @property
    def first(self) -> int:
        """Time of the first change that was not taken; only if there is one."""
        return int(self._times()[0])

    @property
    def last(self) -> int:
        """Time of the last one fetched; only if there is one."""
        return int(self._times()[-1])

    @property
    def rows(self) -> int:
        """Number of changes fetched and not taken."""
        return int(self._pending.num_rows)

    def _times(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.asarray(self._pending.column("_timestamp"))

    @property
    def is_part(self) -> bool:
        """True if all that was fetched has one time, and is too much to wait for the rest of that time."""
        many = self.rows >= PART_ROWS or self._pending.nbytes >= PART_BYTES
        return many and self.first == self.last

    async def fill(self) -> None:
        """Fetch until all changes of some time are here, or the stream has ended, or they are too many."""
        while not (self.ended or (self.rows and self.first < self.last) or self.is_part):
            batch = await anext(self._batches, None)
            if batch is None:
                self.ended = True
            else:
                fetched = pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
                self._pending = joined([self._pending, fetched])

    def take(self, through: int) -> pa.RecordBatch:
        """Remove and return the changes at or below a time."""
        count = int(np.searchsorted(self._times(), through, side="right"))
        taken, self._pending = self._pending.slice(0, count), self._pending.slice(count)
        return taken

    async def close(self) -> None:
        """End the stream."""
        close = getattr(self._batches, "aclose", None)
        if close is not None:
            await close()


def empty_batch(schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch without rows."""
    return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema)


async def fill_all(streams: Sequence[TimedStream]) -> None:
    """Fill streams concurrently, a few at a time; an error of one ends the others."""
    slots = asyncio.Semaphore(PARALLEL_STREAMS)

    async def one(stream: TimedStream) -> None:
        async with slots:
            await stream.fill()

    fills = [asyncio.ensure_future(one(s)) for s in streams]
    try:
        await asyncio.gather(*fills)
    finally:
        for fill in fills:
            fill.cancel()
        await asyncio.gather(*fills, return_exceptions=True)


async def in_time_order(
    streams: Sequence[TimedStream], schema: pa.Schema, since: int, until: int
) -> AsyncGenerator[tuple[pa.RecordBatch, int], None]:
    """Yield changes, and the time at or below which all have been yielded; the last one is `until`.

    Args:
        streams: of all tablets; filled.
        schema: schema of the changes.
        since: the changes are above it.
        until: and at or below it.
    """
    through = since
    while True:
        await fill_all(streams)
        left = [s for s in streams if not s.ended]
        bound = min((s.last - 1 for s in left), default=until)
        parts = [s.take(bound) for s in streams]
        if not left or any(p.num_rows for p in parts):
            through = bound
        else:  # all that is left of some stream is of one time
            parts = [s.take(s.last) for s in left if s.is_part and s.last == bound + 1]
        yield _sorted(parts, schema), through
        if not left:
            return


def _sorted(parts: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Return changes in order of time; those of one time in the order of the parts."""
    some = [p for p in parts if p.num_rows]
    if len(some) < 2:
        return some[0] if some else empty_batch(schema)
    return joined_in_order(["_timestamp"], some)
