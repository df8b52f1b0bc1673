"""Merge of ordered streams: batches that are each sorted by primary key into one sorted stream."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

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


def merge(schema: Schema, streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Yield all rows of some ordered streams in key order.

    Holds one batch of each stream, and of those that lag behind the slowest what is below its end:
    all rows up to the smallest last key of the heads can be given out, sorted.
    """
    heads: list[pa.Table | None] = [None] * len(streams)
    ends: list[bytes] = [b""] * len(streams)
    open_ = list(range(len(streams)))
    while True:
        for number in list(open_):
            if heads[number] is None:
                batch = next((b for b in streams[number] if b.num_rows), None)
                if batch is None:
                    open_.remove(number)
                else:
                    heads[number] = pa.Table.from_batches([batch])
                    ends[number] = last_key(schema, batch)
        if not open_:
            return
        lowest = min(open_, key=lambda n: ends[n])
        parts = [heads[lowest]]
        heads[lowest] = None
        for number in open_:
            head = heads[number]
            if head is not None:
                cut = _rows_up_to(schema, head, ends[lowest])
                parts.append(head.slice(0, cut))
                heads[number] = head.slice(cut) if cut < head.num_rows else None
        yield from sort_by_key(schema, pa.concat_tables(parts)).combine_chunks().to_batches()


def _rows_up_to(schema: Schema, table: pa.Table, key: bytes) -> int:
    """Return how many leading rows of a sorted table have a key at or below `key`: binary search."""
    batch = table.combine_chunks().to_batches()[0]
    low, high = 0, batch.num_rows
    while low < high:
        middle = (low + high) // 2
        if last_key(schema, batch.slice(middle, 1)) <= key:
            low = middle + 1
        else:
            high = middle
    return low
