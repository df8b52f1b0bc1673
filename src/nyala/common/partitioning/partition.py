"""Partitioning: the tablet of a row, and the tablets that a predicate can match.

A partition schema is any number of hash levels on disjoint key columns times at most one range level;
each combination of a range and a bucket per level is one tablet. Bucket = (h * buckets) >> 64 with
nyala hash v1 over the encoded columns of the level. Ranges are ascending, do not overlap and may leave gaps.
The public API is in `common/partitioning/partition_spec.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.expressions.bounds import bounds, key_bounds
from nyala.common.expressions.predicate import Predicate
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import KeyBytes, decode_keys, encode_keys, from_bytes
from nyala.common.keys.hashing import buckets_of, hash_bytes, kernels
from nyala.common.schema import Schema
from nyala.common.values.python_values import python_of

PARTITION_VERSION = 1
MAX_PRUNED_COMBINATIONS = 10_000
"""Maximum number of value combinations of a hash level that are used for pruning."""


@dataclass(frozen=True, slots=True)
class HashLevel:
    """One hash level: rows are distributed over `buckets` by the hash, with `seed`, of these columns."""

    column_ids: tuple[ColumnId, ...]
    buckets: int
    seed: int


@dataclass(frozen=True, slots=True)
class KeyRange:
    """A range of encoded range columns: lower inclusive, upper exclusive, None unbounded."""

    lower: bytes | None = None
    upper: bytes | None = None


EVERYTHING = KeyRange()


@dataclass(frozen=True, slots=True)
class PartitionSchema:
    """Partitioning of a table into tablets.

    Attributes:
        hash: the hash levels; none: one bucket.
        range_column_ids: key columns of the range level, in order; none: no range level.
        ranges: ascending and disjoint; empty: one that covers everything.
        version: version of encoding, hash and bucket rule.
    """

    hash: tuple[HashLevel, ...] = ()
    range_column_ids: tuple[ColumnId, ...] = ()
    ranges: tuple[KeyRange, ...] = ()
    version: int = PARTITION_VERSION

    @property
    def all_ranges(self) -> tuple[KeyRange, ...]:
        """The ranges; without a range level one that covers everything."""
        return self.ranges or (EVERYTHING,)

    @property
    def buckets(self) -> int:
        """Number of tablets per range."""
        return prod(level.buckets for level in self.hash)

    @property
    def count(self) -> int:
        """Number of tablets of the table."""
        return len(self.all_ranges) * self.buckets


@dataclass(frozen=True, slots=True)
class TabletPartition:
    """Partition of one tablet: one bucket of each hash level, and a range."""

    buckets: tuple[int, ...] = ()
    range: KeyRange = EVERYTHING


def partitions(schema: Schema, ps: PartitionSchema) -> list[TabletPartition]:
    """Return the partition of each tablet, range by range, the last hash level varying fastest."""
    levels = [range(level.buckets) for level in ps.hash]
    return [TabletPartition(b, r) for r in ps.all_ranges for b in product(*levels)]


def locate(schema: Schema, ps: PartitionSchema, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
    """Return, for each row, the position of its partition in `partitions()`, or -1 if no range covers it.

    Args:
        schema: the table's.
        ps: the table's.
        batch: has the key columns by name, with their stored types and without nulls (which the caller
            reports); other columns are ignored.
    """
    numbers = _range_numbers(schema, ps, batch)
    uncovered = numbers < 0
    for level in ps.hash:
        numbers *= np.int32(level.buckets)
        numbers += _buckets(schema, level, batch)
    numbers[uncovered] = -1
    return numbers


def contains(
    schema: Schema, ps: PartitionSchema, partition: TabletPartition, batch: pa.RecordBatch
) -> npt.NDArray[np.bool_]:
    """Return, for each row, whether it belongs to `partition`: the server's check of received rows.

    The batch is as for `locate`.

    Args:
        schema: schema of the table.
        ps: partition schema of the table.
        partition: partition of one tablet.
        batch: has the key columns, without nulls.
    """
    assert len(partition.buckets) == len(ps.hash), f"{partition} is not of {ps}"
    inside = np.ones(len(batch), np.bool_)
    if ps.range_column_ids and partition.range != EVERYTHING:
        keys = _encode(schema, ps.range_column_ids, batch)
        if partition.range.lower is not None:
            inside &= _count_below(keys, [partition.range.lower]) == 1
        if partition.range.upper is not None:
            inside &= _count_below(keys, [partition.range.upper]) == 0
    for level, bucket in zip(ps.hash, partition.buckets, strict=True):
        inside &= _buckets(schema, level, batch) == bucket
    return inside


def prune(
    schema: Schema,
    ps: PartitionSchema,
    partitions: Sequence[TabletPartition],
    tree: Predicate | None,
) -> list[TabletPartition]:
    """Return those of `partitions`, in order, that can contain a row that the predicate accepts.

    Args:
        schema: schema of the table.
        ps: partition schema of the table.
        partitions: partitions of the tablets.
        tree: predicate; None: every row.
    """
    if tree is None:
        return list(partitions)
    allowed = [_level_buckets(schema, level, tree) for level in ps.hash]
    range_columns = [schema.by_id[i] for i in ps.range_column_ids]
    within = key_bounds(tree, range_columns) if range_columns else None
    return [
        p
        for p in partitions
        if all(a is None or b in a for a, b in zip(allowed, p.buckets, strict=True))
        and (within is None or within.overlaps(p.range.lower, p.range.upper))
    ]


def describe(schema: Schema, ps: PartitionSchema, partition: TabletPartition) -> str:
    """Format a partition for listings, such as `hash(host) 2 of 4, 10 <= ts < 20`.

    Args:
        schema: schema of the table.
        ps: partition schema of the table.
        partition: partition of one tablet.
    """
    parts = []
    for level, bucket in zip(ps.hash, partition.buckets, strict=True):
        names = ", ".join(schema.by_id[i].name for i in level.column_ids)
        parts.append(f"hash({names}) {bucket} of {level.buckets}")
    if ps.range_column_ids:
        names = ", ".join(schema.by_id[i].name for i in ps.range_column_ids)
        lower = _key_text(schema, ps, partition.range.lower)
        upper = _key_text(schema, ps, partition.range.upper)
        parts.append((f"{lower} <= " if lower else "") + names + (f" < {upper}" if upper else ""))
    return ", ".join(parts) or "everything"


def _key_text(schema: Schema, ps: PartitionSchema, key: bytes | None) -> str:
    if key is None:
        return ""
    arrays = decode_keys(from_bytes([key]), [schema.by_id[i].type for i in ps.range_column_ids])
    return ", ".join(str(python_of(a[0])) for a in arrays)


def _encode(schema: Schema, ids: Sequence[ColumnId], batch: pa.RecordBatch) -> KeyBytes:
    columns = [schema.by_id[i] for i in ids]
    return encode_keys([batch.column(c.name) for c in columns], [c.type for c in columns])


def _buckets(schema: Schema, level: HashLevel, batch: pa.RecordBatch) -> npt.NDArray[np.int32]:
    keys = _encode(schema, level.column_ids, batch)
    return buckets_of(hash_bytes(keys.offsets, keys.data, level.seed), level.buckets)


def _count_below(keys: KeyBytes, ascending: Sequence[bytes]) -> npt.NDArray[np.int32]:
    """Return, for each key, the number of bounds that are <= it."""
    limits, out = from_bytes(ascending), np.empty(len(keys), np.int32)
    kernels().search_right(keys.offsets, keys.data, limits.offsets, limits.data, out)
    return out


def _range_numbers(
    schema: Schema, ps: PartitionSchema, batch: pa.RecordBatch
) -> npt.NDArray[np.int32]:
    ranges = ps.all_ranges
    if not ps.range_column_ids or ranges == (EVERYTHING,):
        return np.zeros(len(batch), np.int32)
    keys = _encode(schema, ps.range_column_ids, batch)
    open_below = ranges[0].lower is None
    found = _count_below(keys, [r.lower for r in ranges if r.lower is not None])
    found -= np.int32(0 if open_below else 1)
    ended = _count_below(keys, [r.upper for r in ranges if r.upper is not None])
    return np.where((found >= 0) & (ended <= found), found, np.int32(-1)).astype(np.int32)


def _level_buckets(schema: Schema, level: HashLevel, tree: Predicate) -> frozenset[int] | None:
    """Return the buckets of a level that a predicate can match; None: all."""
    sets = []
    for column_id in level.column_ids:
        found = bounds(tree, column_id).values
        if found is None:
            return None
        sets.append(found)
    count = prod(len(s) for s in sets)
    if count > MAX_PRUNED_COMBINATIONS:
        return None
    if count == 0:
        return frozenset()
    types = [schema.by_id[i].type for i in level.column_ids]
    columns = zip(*product(*sets), strict=True)
    arrays = [pa.array(values, t) for values, t in zip(columns, types, strict=True)]
    keys = encode_keys(arrays, types)
    found_buckets = buckets_of(hash_bytes(keys.offsets, keys.data, level.seed), level.buckets)
    return frozenset(int(b) for b in found_buckets)
