"""Random schemas, rows and predicates for the tablet: every type, few values of each, so that keys repeat."""

import random
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from nyala.common.alteration import (
    AddColumn,
    AllowNulls,
    DropColumn,
    RenameColumn,
    SetDefault,
    Step,
)
from nyala.common.expressions.predicate import (
    Compare,
    In,
    IsNull,
    Not,
    Predicate,
    Prefix,
    all_of,
    any_of,
)
from nyala.common.expressions.predicate import CompareOp as Sign
from nyala.common.schema import Column, Schema, from_arrow
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files.replicated_ops import RowOp
from tests.properties.support.tablet_model import WRITES, Key, Row

FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)
MOMENTS = [FIRST, datetime(1969, 12, 31, 23, 59, 59, 999_999), datetime(2024, 2, 29, 1), LAST]
KEY_POOLS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int16(): [-(2**15), -1, 0, 1, 2**15 - 1],
    pa.int32(): [-(2**31), -1, 0, 1, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 1, 2**63 - 1],
    pa.string(): ["", "a", "a\0", "b", "é\U0010ffff"],
    pa.binary(): [b"", b"\0", b"\0\1", b"a", b"\xff\xff"],
    pa.date32(): [date(1, 1, 1), date(1970, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): [m.replace(tzinfo=UTC) for m in MOMENTS],
    pa.decimal128(5, 2): [Decimal("-999.99"), Decimal("0.00"), Decimal("0.01"), Decimal("999.99")],
    pa.decimal128(38, 10): [Decimal(n).scaleb(-10) for n in (-(10**37), -1, 0, 10**37)],
}
FLOATS = [0.0, -0.0, 1.5, -2.0, float("inf"), float("nan")]
POOLS = {**KEY_POOLS, pa.bool_(): [False, True], pa.float32(): FLOATS, pa.float64(): FLOATS}
NULL_KEYS = 0.02
NULLS = 0.2


def random_column(chance: random.Random, name: str) -> tuple[pa.Field, Any, bool]:
    """A value column: its field, its default or None, and whether it is immutable."""
    kind = chance.choice(list(POOLS))
    default = chance.choice(POOLS[kind]) if chance.random() < 0.4 else None
    return pa.field(name, kind, nullable=chance.random() < 0.7), default, chance.random() < 0.1


def random_schema(chance: random.Random) -> Schema:
    """One to three key columns of any kinds, one to five others of any types."""
    keys = [f"k{i}" for i in range(chance.choice([1, 1, 2, 3]))]
    fields = [pa.field(n, chance.choice(list(KEY_POOLS))) for n in keys]
    made = [random_column(chance, f"v{i}") for i in range(chance.randrange(1, 6))]
    fields += [f for f, _, _ in made]
    chance.shuffle(fields)
    return from_arrow(
        pa.schema(fields),
        keys,
        defaults={f.name: d for f, d, _ in made if d is not None},
        immutable=[f.name for f, _, fixed in made if fixed],
    )


def random_alteration(chance: random.Random, schema: Schema) -> Step:
    """One valid alteration of the schema; names of dropped columns are reused."""
    used = [c.name for c in schema.columns]
    free = [n for n in (f"v{i}" for i in range(16)) if n not in used]
    values = [c.name for c in schema.value_columns]
    kind = chance.choice(["add", "drop", "rename", "default", "nulls"])
    if kind == "rename":
        return RenameColumn(chance.choice(used), chance.choice(free))
    if (kind == "add" and len(values) < 6) or not values:
        added, default, fixed = random_column(chance, chance.choice(free))
        nullable = added.nullable or default is None
        return AddColumn(added.name, added.type, nullable, default, fixed)
    name = chance.choice(values)
    if kind == "nulls":
        return AllowNulls(name)
    if kind == "default":
        pool = [*POOLS[schema.column(name).type], None]
        return SetDefault(name, chance.choice(pool))
    return DropColumn(name)


def random_keys(chance: random.Random, schema: Schema, most: int = 5) -> list[Key]:
    """A few distinct keys."""
    pools = [POOLS[c.type] for c in schema.key_columns]
    return sorted({tuple(chance.choice(p) for p in pools) for _ in range(most)})


def random_value(chance: random.Random, column: Column) -> Any:
    """A cell: often null where allowed, sometimes where not allowed, rarely too large."""
    if chance.random() < (NULLS if column.nullable else NULL_KEYS):
        return None
    if column.type in (pa.string(), pa.binary()) and chance.random() < 0.003:
        return ("x" if column.type == pa.string() else b"x") * (MAX_CELL_BYTES + 1)
    return chance.choice(POOLS[column.type])


def random_rows(
    chance: random.Random,
    schema: Schema,
    keys: Sequence[Key],
    op: RowOp,
    *,
    count: int | None = None,
    partial: bool | None = None,
    columns: list[str] | None = None,
) -> tuple[list[Row], list[str]]:
    """Rows of one batch of an operation, and the order of the given columns."""
    partial = chance.random() < 0.4 if partial is None else partial
    names = [c.name for c in schema.key_columns]
    if columns is None:
        columns = [c.name for c in schema.value_columns if not partial or chance.random() < 0.5]
        columns += names
        chance.shuffle(columns)
    rows = []
    for _ in range(chance.choice([0, 1, 2, 3, 8]) if count is None else count):
        row: Row = dict(zip(names, chance.choice(keys), strict=True))
        for column in schema.value_columns:
            if column.name in columns:
                row[column.name] = random_value(chance, column)
        if chance.random() < NULL_KEYS:
            row[chance.choice(names)] = None
        if op is RowOp.MIXED:
            row["_op"] = chance.choice(WRITES) if chance.random() < 0.97 else chance.choice([0, 9])
        rows.append(row)
    return rows, columns


def random_predicate(chance: random.Random, schema: Schema, depth: int = 2) -> Predicate:
    """A tree of every kind of condition on columns of every type."""
    if depth and chance.random() < 0.5:
        parts = [random_predicate(chance, schema, depth - 1) for _ in range(chance.randrange(1, 4))]
        if len(parts) == 1:
            return Not(parts[0])
        return chance.choice([all_of, any_of])(parts)
    column = chance.choice(schema.columns)
    pool = POOLS[column.type] + _between(POOLS[column.type])
    kind = chance.choice(["compare", "compare", "in", "null", "prefix"])
    if kind == "null":
        return IsNull(column.id)
    if kind == "in":
        return In(column.id, pa.array(chance.choices(pool, k=chance.randrange(4)), column.type))
    if kind == "prefix" and column.type == pa.string():
        return Prefix(column.id, chance.choice(["", "a", "é", "b"]))
    return Compare(
        column.id, chance.choice(list(Sign)), pa.scalar(chance.choice(pool), column.type)
    )


def _between(pool: list[Any]) -> list[Any]:
    """Values adjacent to those of a pool, at the edges of statistics and key ranges."""
    if isinstance(pool[0], datetime):
        return [m + timedelta(microseconds=1) for m in pool[1:3]]
    if isinstance(pool[0], str):
        return ["a\0\0", "aa", "\0"]
    return [b"\0\0", b"aa"] if isinstance(pool[0], bytes) else []


def weak_hash(
    offsets: "np.ndarray[Any, np.dtype[np.int64]]", data: "np.ndarray[Any, Any]", seed: int
) -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """A hash with two values for all keys, both with the same upper half."""
    sizes = np.diff(offsets).astype(np.uint64)
    return np.uint64(7 << 32) | (sizes & np.uint64(1))
