"""Merge of ordered streams: batches that are each sorted by primary key into one sorted stream."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.keys import encode_keys
from nyala.common.schema import Schema


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


def merge(schema: Schema, streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of some ordered streams in key order.

    Holds one batch of each stream: all rows up to the smallest last key of these can be given out, sorted.
    """
    names = [c.name for c in schema.key_columns]
    heads: dict[int, _Head] = {}
    open_ = list(range(len(streams)))
    while True:
        for number in list(open_):
            if number not in heads:
                batch = next((b for b in streams[number] if b.num_rows), None)
                if batch is None:
                    open_.remove(number)
                else:
                    heads[number] = _Head(names, batch)
        if not heads:
            return
        end = min(head.end for head in heads.values())
        parts = [part for head in heads.values() if (part := head.take(end)).num_rows]
        heads = {number: head for number, head in heads.items() if not head.is_empty}
        yield parts[0] if len(parts) == 1 else joined_in_order(names, parts)


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
