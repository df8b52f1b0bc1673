"""Merge of ordered streams: batches that are each sorted by primary key into one sorted stream."""

from bisect import bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.keys.encoding import encode_keys
from nyala.common.schema import Schema
from nyala.env.tasks import Lane, Tasks


def sort_by_key(schema: Schema, table: pa.Table) -> pa.Table:
    """Return a table sorted by the primary key; needs every key column."""
    return table.sort_by([(c.name, "ascending") for c in schema.key_columns])


def last_key(schema: Schema, batch: pa.RecordBatch) -> bytes:
    """Return the encoded primary key of a batch's last row."""
    return last_key_of([c.name for c in schema.key_columns], batch)


def last_key_of(names: Sequence[str], batch: pa.RecordBatch) -> bytes:
    """As `last_key`, from the names of the key columns."""
    arrays = [batch.column(n).slice(batch.num_rows - 1) for n in names]
    return encode_keys(arrays, [a.type for a in arrays]).key_at(0)


class _Head:
    """The next batch of one stream.

    Args:
        names: names of the key columns.
        batch: rows that are sorted by key.

    Attributes:
        end: encoded key of the last row.
    """

    def __init__(self, names: Sequence[str], batch: pa.RecordBatch) -> None:
        arrays = [batch.column(n) for n in names]
        self._batch = batch
        self._keys = encode_keys(arrays, [a.type for a in arrays])
        self._at = 0
        self.end = self._keys.key_at(batch.num_rows - 1)

    def take(self, key: bytes) -> pa.RecordBatch:
        """Return the next rows, up to a key."""
        begin = self._at
        self._at = bisect_right(range(len(self._keys)), key, begin, key=self._keys.key_at)
        return self._batch.slice(begin, self._at - begin)

    @property
    def is_empty(self) -> bool:
        """True if all rows were taken."""
        return self._at == len(self._keys)


class KeyMerge:
    """The state of a merge: one batch of each stream, as encoded keys and rows.

    All rows up to the smallest last key of these batches can be given out, sorted.

    Args:
        schema: has the key columns.
        streams: number of streams, each sorted by key.
    """

    def __init__(self, schema: Schema, streams: int) -> None:
        self._names = [c.name for c in schema.key_columns]
        self._heads: dict[int, _Head] = {}
        self._open = dict.fromkeys(range(streams))

    def wanted(self) -> list[int]:
        """Return the streams of which a batch is needed before `take`."""
        return [number for number in self._open if number not in self._heads]

    def put(self, number: int, batch: pa.RecordBatch | None) -> None:
        """Add the next batch of a stream, which has rows; None: the stream has ended."""
        if batch is None:
            del self._open[number]
        else:
            self._heads[number] = _Head(self._names, batch)

    def take(self) -> pa.RecordBatch | None:
        """Return the next rows in key order; None: all were taken."""
        if not self._heads:
            return None
        heads = self._heads
        end = min(head.end for head in heads.values())
        parts = [part for head in heads.values() if (part := head.take(end)).num_rows]
        self._heads = {number: head for number, head in heads.items() if not head.is_empty}
        return parts[0] if len(parts) == 1 else joined_in_order(self._names, parts)


async def merge(
    schema: Schema, streams: Sequence[AsyncIterator[pa.RecordBatch]], tasks: Tasks
) -> AsyncGenerator[pa.RecordBatch, None]:
    """Yield all rows of some ordered streams in key order.

    Holds one batch of each stream. Keys are encoded and rows are sorted in the lane COMPUTE.

    Args:
        schema: has the key columns.
        streams: each sorted by key.
        tasks: lanes.
    """
    merging = KeyMerge(schema, len(streams))

    def step(added: dict[int, pa.RecordBatch | None]) -> pa.RecordBatch | None:
        for number, batch in added.items():
            merging.put(number, batch)
        return merging.take()

    while True:
        added = {number: await _with_rows(streams[number]) for number in merging.wanted()}
        if (rows := await tasks.run(Lane.COMPUTE, step, added)) is None:
            return
        yield rows


async def _with_rows(batches: AsyncIterator[pa.RecordBatch]) -> pa.RecordBatch | None:
    """Return the next batch that has rows; None: there is none."""
    async for batch in batches:
        if batch.num_rows:
            return batch
    return None


def joined_in_order(names: Sequence[str], parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of some batches, sorted; equal ones in the order of the batches.

    Its memory goes back to the system when it is released: see `joined`.

    Args:
        names: names of the columns to sort by, ascending.
        parts: batches, at least one.
    """
    pool = pa.system_memory_pool()
    rows = joined(parts)
    options = pc.SortOptions([(name, "ascending") for name in names])
    order = pc.sort_indices(rows.select(names), options=options, memory_pool=pool)
    return pc.take(rows, order, memory_pool=pool)


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of some batches as one; its memory goes back to the system when it is released.

    Arrow's own pool keeps tens of megabytes of what a merge has released.
    """
    return pa.concat_batches(parts, memory_pool=pa.system_memory_pool())
