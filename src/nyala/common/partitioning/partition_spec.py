"""Public API for the partitioning of a new table: `Hash`, `Range` and `Partition`.

`resolve` checks a spec against the table's schema and returns the `PartitionSchema` to store.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa

from nyala.common.errors import InvalidArgument
from nyala.common.ids import ColumnId
from nyala.common.keys.encoding import encode_key
from nyala.common.partitioning.partition import HashLevel, KeyRange, PartitionSchema
from nyala.common.schema import Column, Schema
from nyala.common.values.python_values import scalar_of, shown

MIN_BUCKETS = 2
MAX_BUCKETS = 1024
MAX_PARTITIONS = 10_000
LEVEL_SEED = 0x6E79616C61000000
"""Seed of the first hash level ("nyala"), incremented for the next ones; different from index seeds."""


@dataclass(frozen=True)
class Hash:
    """Distributes rows over `buckets` (2..1024) by a hash of some key columns."""

    columns: Sequence[str]
    buckets: int


@dataclass(frozen=True)
class Range:
    """Partitions a table by ranges of some key columns.

    Attributes:
        columns: names of key columns, most significant first.
        bounds: (lower, upper) pairs in any order: lower inclusive, upper exclusive, None unbounded. A bound
            is a value, or a tuple with one value for each column. Rows in gaps get the row error
            `no_partition`.
    """

    columns: Sequence[str]
    bounds: Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Partition:
    """Partitioning of a table: hash levels on disjoint columns, and at most one range level."""

    hash: Sequence[Hash] = ()
    range: Range | None = None


def resolve(spec: Partition | None, schema: Schema) -> PartitionSchema:
    """Return the stored form of a spec; None: a single tablet.

    Raises:
        InvalidArgument: an unknown, non-key or duplicate column, a bucket count outside 2..1024, inverted,
            empty or overlapping bounds or bounds of another type, too many partitions.
    """
    if spec is None:
        return PartitionSchema()
    if not isinstance(spec, Partition):
        raise InvalidArgument(
            f"partition= takes nyala.Partition, not {type(spec).__name__}; pass "
            "nyala.Partition(hash=[...], range=...)"
        )
    levels = _levels(spec.hash, schema)
    range_columns: list[Column] = []
    ranges: tuple[KeyRange, ...] = ()
    if spec.range is not None:
        if not isinstance(spec.range, Range):
            raise InvalidArgument(
                f"range= takes nyala.Range, not {type(spec.range).__name__}; pass "
                "nyala.Range([column], [(lower, upper)])"
            )
        range_columns = _key_columns(spec.range.columns, schema, "Range")
        ranges = _ranges(spec.range, range_columns)
    made = PartitionSchema(levels, tuple(c.id for c in range_columns), ranges)
    if made.count > MAX_PARTITIONS:
        raise InvalidArgument(
            f"{len(made.all_ranges)} ranges x {made.buckets} buckets are {made.count} partitions; "
            f"a table has at most {MAX_PARTITIONS}; use fewer buckets or ranges"
        )
    return made


def _levels(specs: Sequence[Hash], schema: Schema) -> tuple[HashLevel, ...]:
    if isinstance(specs, Hash) or not _is_list(specs):
        raise InvalidArgument(
            "hash= takes a list, as a table may have several levels; pass "
            "Partition(hash=[nyala.Hash([column], buckets)])"
        )
    levels: list[HashLevel] = []
    taken: dict[ColumnId, str] = {}
    for number, spec in enumerate(specs):
        if not isinstance(spec, Hash):
            raise InvalidArgument(
                f"hash= takes nyala.Hash, not {type(spec).__name__}; pass nyala.Hash([column], buckets)"
            )
        columns = _key_columns(spec.columns, schema, "Hash")
        for column in columns:
            if column.id in taken:
                raise InvalidArgument(
                    f"column {column.name!r} is in two hash levels; each level needs columns of its own; "
                    "remove it from one of them"
                )
            taken[column.id] = column.name
        buckets = spec.buckets
        if isinstance(buckets, bool) or not isinstance(buckets, int):
            raise InvalidArgument(
                f"Hash buckets are an int, not {type(buckets).__name__}; pass a whole number from "
                f"{MIN_BUCKETS} to {MAX_BUCKETS}"
            )
        if not MIN_BUCKETS <= buckets <= MAX_BUCKETS:
            raise InvalidArgument(
                f"Hash({_names(columns)}) has {buckets} buckets; "
                f"a hash level has {MIN_BUCKETS} to {MAX_BUCKETS}; choose a number in that range, "
                "or omit the level"
            )
        levels.append(HashLevel(tuple(c.id for c in columns), buckets, LEVEL_SEED + number))
    return tuple(levels)


def _key_columns(names: Sequence[str], schema: Schema, what: str) -> list[Column]:
    if isinstance(names, str) or not _is_list(names) or not names:
        raise InvalidArgument(
            f"{what} takes a list with at least one column name, not {names!r}; pass [column, ...]"
        )
    found: list[Column] = []
    for name in names:
        if not isinstance(name, str):
            raise InvalidArgument(
                f"{what} takes column names, not {type(name).__name__}; pass the name as a string"
            )
        column = schema.by_name.get(name)
        keys = ", ".join(c.name for c in schema.key_columns)
        if column is None:
            raise InvalidArgument(f"{what}: no column {name!r}; the key columns are: {keys}")
        if column.id not in schema.key_ids:
            raise InvalidArgument(
                f"{what}: column {name!r} is not in the primary key, and the key alone must determine a "
                f"row's tablet; the key columns are: {keys}"
            )
        if column in found:
            raise InvalidArgument(f"{what}: column {name!r} is named twice; name each column once")
        found.append(column)
    return found


def _ranges(spec: Range, columns: list[Column]) -> tuple[KeyRange, ...]:
    if not _is_list(spec.bounds) or not spec.bounds:
        raise InvalidArgument(
            f"Range({_names(columns)}) needs bounds, a list of (lower, upper) pairs: without any, "
            "no tablet would hold a row; give at least one, (None, None) covers everything"
        )
    if len(spec.bounds) > MAX_PARTITIONS:
        raise InvalidArgument(
            f"Range({_names(columns)}) has {len(spec.bounds)} ranges; a table has at most "
            f"{MAX_PARTITIONS}; use fewer"
        )
    made: list[tuple[KeyRange, Any]] = []
    for pair in spec.bounds:
        if not _is_list(pair) or len(pair) != 2:
            raise InvalidArgument(
                f"a range bound is a pair (lower, upper), not {shown(pair)}; write None for an open end"
            )
        lower, upper = (_end(value, columns) for value in pair)
        if lower is not None and upper is not None and lower >= upper:
            raise InvalidArgument(
                f"the range {_shown(pair)} of {_names(columns)} is empty: its lower end must be below "
                "its upper end, which is exclusive; swap or widen them"
            )
        made.append((KeyRange(lower, upper), pair))
    made.sort(key=lambda m: (m[0].lower is not None, m[0].lower or b""))
    for (before, first), (after, second) in pairwise(made):
        if before.upper is None or after.lower is None or before.upper > after.lower:
            raise InvalidArgument(
                f"the ranges {_shown(first)} and {_shown(second)} of {_names(columns)} overlap; "
                "a row must belong to one range only; shorten one of them"
            )
    return tuple(range_ for range_, _ in made)


def _end(value: Any, columns: list[Column]) -> bytes | None:
    """Return the encoded bound of a range; None: unbounded."""
    if value is None:
        return None
    values = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(values) != len(columns):
        raise InvalidArgument(
            f"the range end {shown(value)} has {len(values)} values for {len(columns)} columns "
            f"({_names(columns)}); give a tuple with one value for each"
        )
    scalars = [_scalar(v, c) for v, c in zip(values, columns, strict=True)]
    return encode_key(scalars, [c.type for c in columns])


def _scalar(value: Any, column: Column) -> pa.Scalar:
    what = f"range end of column {column.name!r}"
    if value is None:
        raise InvalidArgument(
            f"{what}: a single column of an end cannot be open; pass None for the whole end"
        )
    return scalar_of(value, column.type, f"{what}: {shown(value)}")


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _names(columns: Collection[Column]) -> str:
    return ", ".join(c.name for c in columns)


def _shown(pair: Sequence[Any]) -> str:
    return f"[{shown(pair[0])}, {shown(pair[1])})"
