"""The change feed: versions that began or ended in (since, until], net per key or version by version.

An `update` is a version that follows another without a gap (by version), or a key that had a row at both
ends of the interval (net). Rows are in order of (_timestamp, key), over all rowsets.
Lane COMPUTE.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from nyala.common.expressions.predicate import Predicate, columns_of, evaluate
from nyala.common.ids import ColumnId
from nyala.common.keys import encoding as key_bytes
from nyala.common.keys.encoding import KeyBytes
from nyala.common.schema import Column, Schema
from nyala.tablet.kernels import key_index, successors
from nyala.tablet.rows.gathering import gather_batches
from nyala.tablet.rows.rowset import Chunked, HashKeys, Int64s, RowSetView, Uint64s

GATHER_ROWS = 131_072
"""Changes are gathered so many at a time."""

OP_FIELD = pa.field("_op", pa.string(), nullable=False)
TIMESTAMP_FIELD = pa.field("_timestamp", pa.int64(), nullable=False)
BEFORE = "_before"
_INTERVALS = 4096
INSERT, UPDATE, DELETE = range(3)
_WORDS = pa.array(["insert", "update", "delete"])
Codes = npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Changes:
    """Changes, each with the version that shows it (for a delete: the one that ended).

    Attributes:
        which: rowset of that version.
        rows: its position there.
        old_which: rowset of the version before the change.
        old_rows: its position there; -1: the key had no row.
        ops: INSERT, UPDATE or DELETE.
        stamps: hybrid time of each change.
    """

    which: Int64s
    rows: Int64s
    old_which: Int64s
    old_rows: Int64s
    ops: Codes
    stamps: Uint64s

    def take(self, rows: npt.NDArray[np.generic]) -> "Changes":
        """Return some of them."""
        return Changes(
            self.which[rows], self.rows[rows], self.old_which[rows], self.old_rows[rows],
            self.ops[rows], self.stamps[rows],
        )  # fmt: skip

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
        rows = rows[rowset.ins[rows] != end[rows]]  # written again by the same transaction
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


def end_of(
    rowsets: Sequence[RowSetView], since: int, until: int, limit: int, *, retired_at: int = 0
) -> int:
    """Return a time in (since, until] up to which at most about `limit` versions began or ended.

    Times are counted in intervals of equal width, at first of the whole and then of the interval in which the
    limit is reached: memory does not grow with the number of versions that began or ended.

    Args:
        rowsets: rowsets of the tablet.
        since: exclusive lower hybrid time.
        until: inclusive upper hybrid time.
        limit: most versions; more only if they began or ended at one time.
        retired_at: hybrid time at which the tablet was retired; 0: it was not.
    """
    high = until
    while high - since > 1:
        width = -(-(high - since) // _INTERVALS)
        counts = np.zeros(_INTERVALS, np.int64)
        for rowset in rowsets:
            ends = rowset.ends[: rowset.rows].copy()
            if retired_at and retired_at <= until:
                ends[(ends == 0) | (ends > np.uint64(until))] = retired_at
            for stamps in (rowset.ins, ends):
                inside = stamps[(stamps > np.uint64(since)) & (stamps <= np.uint64(high))]
                numbers = (inside - np.uint64(since + 1)) // np.uint64(width)
                counts += np.bincount(numbers.astype(np.int64), minlength=_INTERVALS)
        fits = int(np.searchsorted(np.cumsum(counts), limit, side="right"))
        if fits:  # so many intervals have no more versions than the limit
            return min(high, since + fits * width)
        high = min(high, since + width)  # the first interval has more
    return high


def net(versions: _Touched, since: int) -> Changes:
    """One change per key whose row differs between the ends of the interval."""
    low = np.uint64(since)
    keys = int(versions.numbers.max(initial=-1)) + 1
    before = np.full(keys, -1, np.int64)  # of each key, the version at `since`
    old = np.flatnonzero(versions.ins <= low)
    before[versions.numbers[old]] = old
    exists = np.zeros(keys, np.bool_)
    last = versions.ends == 0
    exists[versions.numbers[last]] = True
    ended = np.zeros(keys, np.uint64)
    np.maximum.at(ended, versions.numbers, versions.ends)
    deleted = (versions.ins <= low) & ~exists[versions.numbers]
    chosen = np.flatnonzero(last | deleted)
    numbers = versions.numbers[chosen]
    ops = np.where(deleted[chosen], DELETE, np.where(before[numbers] >= 0, UPDATE, INSERT))
    stamps = np.where(deleted[chosen], ended[numbers], versions.ins[chosen])
    return _in_order(versions, chosen, before[numbers], ops.astype(np.int8), stamps)


def by_version(versions: _Touched, since: int) -> Changes:
    """One change per version that began, and one per version that ended without a successor."""
    low = np.uint64(since)
    count, keys = len(versions.ins), int(versions.numbers.max(initial=-1)) + 1
    before, followed = np.full(count, -1, np.int64), np.zeros(count, np.uint8)
    order = np.argsort(versions.ins)
    successors.find_successors(
        versions.numbers, versions.ins, versions.ends, order, np.full(keys, -1, np.int64), before,
        followed,
    )  # fmt: skip
    began = np.flatnonzero(versions.ins > low)
    deleted = np.flatnonzero((versions.ends > low) & (followed == 0))
    ops = np.where(before[began] >= 0, UPDATE, INSERT)
    return _in_order(
        versions,
        np.concatenate([began, deleted]),
        np.concatenate([before[began], deleted]),
        np.concatenate([ops, np.full(len(deleted), DELETE)]).astype(np.int8),
        np.concatenate([versions.ins[began], versions.ends[deleted]]),
    )


def _in_order(
    versions: _Touched, chosen: Int64s, before: Int64s, ops: Codes, stamps: Uint64s
) -> Changes:
    """Return the changes that chosen versions show, in order of (time, key).

    Args:
        versions: all versions.
        chosen: versions that show a change.
        before: for each of them, the version before the change; -1: none.
        ops: operation of each.
        stamps: hybrid time of each.
    """
    keys = versions.keys.take(chosen)
    words = keys.words()  # numbers are sorted faster than byte strings
    sortable = keys.as_arrow() if words is None else pa.array(words)
    table = pa.table({"stamp": pa.array(stamps), "key": sortable})
    order = pc.sort_indices(table, sort_keys=[("stamp", "ascending"), ("key", "ascending")])
    found = Changes(
        versions.which[chosen], versions.rows[chosen],
        versions.which[before], np.where(before < 0, -1, versions.rows[before]),
        ops, stamps,
    )  # fmt: skip
    return found.take(np.asarray(order, np.int64))


def schema_of(
    columns: Sequence[Column], keys: Collection[ColumnId], *, before: bool = False
) -> pa.Schema:
    """Return the schema of a change feed: in a delete every column but the key is null.

    Args:
        columns: columns of the feed.
        keys: ids of the key columns.
        before: with `_before`, the row before each change.
    """
    fields = [pa.field(c.name, c.type, nullable=c.id not in keys) for c in columns]
    last = [_before_field(columns)] if before else []
    return pa.schema([*fields, OP_FIELD, TIMESTAMP_FIELD, *last])


def _before_field(columns: Sequence[Column]) -> pa.Field:
    return pa.field(BEFORE, pa.struct([pa.field(c.name, c.type) for c in columns]))


def read(
    rowsets: Sequence[RowSetView],
    schema: Schema,
    changes: Changes,
    columns: Sequence[Column],
    where: Predicate | None,
    *,
    before: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Return changes with their columns; a delete carries the key, and null in the other columns.

    With a predicate the changes are those of the table of matching rows: a row that no longer matches is
    deleted, one that matches from now on is inserted.

    Args:
        rowsets: rowsets of the tablet.
        schema: schema of the tablet.
        changes: versions, by rowset.
        columns: wanted, in this order.
        where: predicate; None: every row.
        before: add `_before`, the row before each change; null for an insert.
    """
    sources = [r.chunks for r in rowsets]
    inner = _by_id(columns)
    for begin in range(0, len(changes), GATHER_ROWS):
        part = changes.take(np.arange(begin, min(begin + GATHER_ROWS, len(changes))))
        if where is not None:
            part = _matching(sources, schema, part, where)
        at = 0
        for batch in gather_batches(sources, part.which, part.rows, list(columns), inner):
            piece = part.take(np.arange(at, at + batch.num_rows))
            at += batch.num_rows
            shown = _shown(piece, batch, schema, columns)
            if before:
                yield from _with_before(sources, piece, shown, columns)
            else:
                yield shown


def _by_id(columns: Sequence[Column]) -> pa.Schema:
    return pa.schema([pa.field(str(c.id), c.type) for c in columns])


def _matching(
    sources: Sequence[Chunked], schema: Schema, changes: Changes, where: Predicate
) -> Changes:
    """Return the changes of the table of rows that match a predicate.

    Args:
        sources: chunks of each rowset.
        schema: schema of the tablet.
        changes: changes of the whole table.
        where: the predicate.
    """
    columns = [schema.by_id[i] for i in columns_of(where)]

    def matches(which: Int64s, rows: Int64s, some: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        found, chosen = np.zeros(len(some), np.bool_), np.flatnonzero(some)
        at = 0
        for batch in gather_batches(sources, which[chosen], rows[chosen], columns, _by_id(columns)):
            by_id = dict(zip((c.id for c in columns), batch.columns, strict=True))
            mask = evaluate(where, by_id.__getitem__, batch.num_rows)
            numbers = chosen[at : at + batch.num_rows]
            found[numbers] = pc.fill_null(mask, False).to_numpy(zero_copy_only=False)
            at += batch.num_rows
        return found

    old = matches(changes.old_which, changes.old_rows, changes.old_rows >= 0)
    new = matches(changes.which, changes.rows, changes.ops != DELETE)
    ops = np.where(new, np.where(old, UPDATE, INSERT), DELETE).astype(np.int8)
    old_rows = np.where(old, changes.old_rows, -1)
    return replace(changes, ops=ops, old_rows=old_rows).take(np.flatnonzero(old | new))


def _shown(
    changes: Changes, batch: pa.RecordBatch, schema: Schema, columns: Sequence[Column]
) -> pa.RecordBatch:
    deleted = pa.array(changes.ops == DELETE)
    arrays = []
    for column, array in zip(columns, batch.columns, strict=True):
        if column.id not in schema.key_ids and (changes.ops == DELETE).any():
            array = pc.if_else(deleted, pa.scalar(None, column.type), array)
        arrays.append(array)
    arrays += [_WORDS.take(pa.array(changes.ops)), pa.array(changes.stamps.astype(np.int64))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns, schema.key_ids))


def _with_before(
    sources: Sequence[Chunked], changes: Changes, shown: pa.RecordBatch, columns: Sequence[Column]
) -> Iterator[pa.RecordBatch]:
    """Yield changes with the column `_before`.

    Args:
        sources: chunks of each rowset.
        changes: the changes.
        shown: their columns.
        columns: columns of the feed.
    """
    chosen = np.flatnonzero(changes.old_rows >= 0)
    begin = at = 0
    field = _before_field(columns)
    old_which, old_rows = changes.old_which[chosen], changes.old_rows[chosen]
    for old in gather_batches(sources, old_which, old_rows, list(columns), _by_id(columns)):
        at += old.num_rows
        end = int(chosen[at]) if at < len(chosen) else len(changes)
        yield _append(shown.slice(begin, end - begin), field, old, changes.old_rows[begin:end] < 0)
        begin = end


def _append(
    shown: pa.RecordBatch, field: pa.Field, old: pa.RecordBatch, absent: npt.NDArray[np.bool_]
) -> pa.RecordBatch:
    """Add `_before` to some changes.

    Args:
        shown: the changes.
        field: the column.
        old: the rows before, of the changes that have one.
        absent: true for the other changes.
    """
    numbers = pa.array(np.cumsum(~absent) - 1, pa.int64(), mask=absent)
    arrays = [array.take(numbers) for array in old.columns]
    rows = pa.StructArray.from_arrays(arrays, fields=list(field.type), mask=pa.array(absent))
    return shown.append_column(field, rows)
