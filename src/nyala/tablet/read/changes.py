"""The change feed: versions that began or ended in (since, until], net per key or version by version.

An `update` is a version that follows another without a gap (by version), or a key that had a row at both
ends of the interval (net). Rows are in order of (_timestamp, key), over all rowsets.
Lane COMPUTE.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common import keys as key_bytes
from nyala.common.ids import ColumnId
from nyala.common.keys import KeyBytes
from nyala.common.predicate import Predicate, columns_of, evaluate
from nyala.common.schema import Column, Schema
from nyala.tablet.kernels import key_index
from nyala.tablet.rows.gathering import gather_batches
from nyala.tablet.rows.rowset import HashKeys, Int64s, RowSetView, Uint64s

GATHER_ROWS = 131_072
"""Changes are gathered so many at a time."""

OP_FIELD = pa.field("_op", pa.string(), nullable=False)
TIMESTAMP_FIELD = pa.field("_timestamp", pa.int64(), nullable=False)
INSERT, UPDATE, DELETE = range(3)
_WORDS = pa.array(["insert", "update", "delete"])
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Changes, each with the version that shows it (for a delete: the one that ended)."""

    which: Int64s
    rows: Int64s
    ops: Codes
    stamps: Uint64s

    def take(self, rows: npt.NDArray[np.generic]) -> "Changes":
        """Return some of them."""
        return Changes(self.which[rows], self.rows[rows], self.ops[rows], self.stamps[rows])

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Touched:
    """Every version that began or ended in the interval."""

    which: Int64s
    rows: Int64s
    ins: Uint64s
    ends: Uint64s  # 0 for those that had not ended by `until`
    numbers: Int64s  # of the key
    keys: KeyBytes


def touched(
    rowsets: Sequence[RowSetView], since: int, until: int, *, seed: int, hash_keys: HashKeys,
    retired_at: int = 0,
) -> _Touched:  # fmt: skip
    """Collect the versions that began or ended in (since, until]; as a tablet is retired, all end.

    Args:
        rowsets: rowsets of the tablet.
        since: exclusive lower hybrid time.
        until: inclusive upper hybrid time.
        seed: seed of the index hash.
        hash_keys: the index hash.
        retired_at: hybrid time at which the tablet was retired; 0: it was not.
    """
    low, high = np.uint64(since), np.uint64(until)
    which, found, ins, ends, keys = [], [], [], [], []
    for number, rowset in enumerate(rowsets):
        end = rowset.ends[: rowset.rows].copy()  # lane APPLY writes to it; one copy decides
        end[end > high] = 0
        if 0 < retired_at <= until:
            end[end == 0] = retired_at
        began = (rowset.ins > low) & (rowset.ins <= high)
        rows = np.flatnonzero(began | (end > low))
        which.append(np.full(len(rows), number, np.int64))
        found.append(rows)
        ins.append(rowset.ins[rows])
        ends.append(end[rows])
        keys.append(rowset.keys.take(rows))
    if not found:
        none, zero = np.empty(0, np.int64), np.empty(0, np.uint64)
        return _Touched(none, none, zero, zero, none, key_bytes.concat([]))
    joined = key_bytes.concat(keys)
    numbers, first = np.empty(len(joined), np.int64), np.empty(len(joined), np.int64)
    hashes = hash_keys(joined.offsets, joined.data, seed)
    skip = np.zeros(len(joined), np.uint8)
    key_index.group(joined.layout, joined.data, hashes, skip, numbers, first)
    return _Touched(
        np.concatenate(which), np.concatenate(found), np.concatenate(ins), np.concatenate(ends),
        numbers, joined,
    )  # fmt: skip


def net(versions: _Touched, since: int) -> Changes:
    """One change per key whose row differs between the ends of the interval."""
    low = np.uint64(since)
    keys = int(versions.numbers.max(initial=-1)) + 1
    existed = np.zeros(keys, np.bool_)
    existed[versions.numbers[versions.ins <= low]] = True
    exists = np.zeros(keys, np.bool_)
    last = versions.ends == 0
    exists[versions.numbers[last]] = True
    ended = np.zeros(keys, np.uint64)
    np.maximum.at(ended, versions.numbers, versions.ends)
    deleted = (versions.ins <= low) & ~exists[versions.numbers]
    chosen = np.flatnonzero(last | deleted)
    numbers = versions.numbers[chosen]
    ops = np.where(deleted[chosen], DELETE, np.where(existed[numbers], UPDATE, INSERT)).astype(
        np.int8
    )
    stamps = np.where(deleted[chosen], ended[numbers], versions.ins[chosen])
    found = Changes(versions.which[chosen], versions.rows[chosen], ops, stamps)
    return _in_order(found, versions.keys.take(chosen))


def by_version(versions: _Touched, since: int) -> Changes:
    """One change per version that began, and one per version that ended without a successor."""
    low = np.uint64(since)
    began, ended = np.flatnonzero(versions.ins > low), np.flatnonzero(versions.ends > low)
    starts = np.stack([versions.numbers[began].astype(np.uint64), versions.ins[began]], axis=1)
    stops = np.stack([versions.numbers[ended].astype(np.uint64), versions.ends[ended]], axis=1)
    places, codes = np.unique(np.concatenate([starts, stops]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    follows, followed = np.zeros(len(places), np.bool_), np.zeros(len(places), np.bool_)
    follows[codes[len(began) :]] = True
    followed[codes[: len(began)]] = True
    ops = np.where(follows[codes[: len(began)]], UPDATE, INSERT)
    deleted = ended[~followed[codes[len(began) :]]]
    chosen = np.concatenate([began, deleted])
    found = Changes(
        versions.which[chosen],
        versions.rows[chosen],
        np.concatenate([ops, np.full(len(deleted), DELETE)]).astype(np.int8),
        np.concatenate([versions.ins[began], versions.ends[deleted]]),
    )
    return _in_order(found, versions.keys.take(chosen))


def _in_order(changes: Changes, keys: KeyBytes) -> Changes:
    table = pa.table({"stamp": pa.array(changes.stamps), "key": keys.as_arrow()})
    order = pc.sort_indices(table, sort_keys=[("stamp", "ascending"), ("key", "ascending")])
    return changes.take(np.asarray(order, np.int64))


def schema_of(columns: Sequence[Column], keys: Sequence[ColumnId]) -> pa.Schema:
    """Return the schema of a change feed: in a delete every column but the key is null."""
    fields = [pa.field(c.name, c.type, nullable=c.id not in keys) for c in columns]
    return pa.schema([*fields, OP_FIELD, TIMESTAMP_FIELD])


def read(
    rowsets: Sequence[RowSetView],
    schema: Schema,
    changes: Changes,
    columns: Sequence[Column],
    where: Predicate | None,
) -> Iterator[pa.RecordBatch]:
    """Return changes with their columns; a delete carries the key, and null in the other columns.

    Args:
        rowsets: rowsets of the tablet.
        schema: schema of the tablet.
        changes: versions, by rowset.
        columns: wanted, in this order.
        where: predicate; None: every row.
    """
    read_columns = {c.id: c for c in columns}
    read_columns |= {i: schema.by_id[i] for i in (columns_of(where) if where is not None else ())}
    inner = pa.schema([pa.field(str(i), c.type) for i, c in read_columns.items()])
    sources = [r.chunks for r in rowsets]
    for begin in range(0, len(changes), GATHER_ROWS):
        part = changes.take(np.arange(begin, min(begin + GATHER_ROWS, len(changes))))
        at = 0
        for batch in gather_batches(
            sources, part.which, part.rows, list(read_columns.values()), inner
        ):
            piece = part.take(np.arange(at, at + batch.num_rows))
            at += batch.num_rows
            yield _finish(piece, batch, schema, columns, where)


def _finish(
    changes: Changes,
    batch: pa.RecordBatch,
    schema: Schema,
    columns: Sequence[Column],
    where: Predicate | None,
) -> pa.RecordBatch:
    by_id = {ColumnId(int(n)): a for n, a in zip(batch.schema.names, batch.columns, strict=True)}
    deleted = pa.array(changes.ops == DELETE)
    arrays = []
    for column in columns:
        array = by_id[column.id]
        if column.id not in schema.key_ids and (changes.ops == DELETE).any():
            array = pc.if_else(deleted, pa.scalar(None, column.type), array)
        arrays.append(array)
    arrays += [_WORDS.take(pa.array(changes.ops)), pa.array(changes.stamps.astype(np.int64))]
    found = pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns, schema.key_ids))
    if where is None:
        return found
    return found.filter(evaluate(where, by_id.__getitem__, len(changes)))
