"""A tablet that is altered at random, and its model: all rows and the schema after each operation."""

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from nyala.common.alteration import AddColumn, DropColumn, RenameColumn, SetDefault, Step, alter
from nyala.common.expressions.predicate import Compare, CompareOp
from nyala.common.ids import ColumnId
from nyala.common.schema import Schema
from nyala.tablet.files.replicated_ops import RowOp
from tests.unit.tablet.support.tablet_support import Driver, payload

KEYS = 12
KEY = ColumnId(0)
NAMES = ("a", "b", "c", "d")
TYPES = (pa.int64(), pa.string(), pa.int16())
Rows = dict[int, dict[ColumnId, Any]]


@dataclass(frozen=True)
class Moment:
    """State of the model after one operation: its stamp, the schema, and values by key and column id."""

    stamp: int
    schema: Schema
    rows: Rows


@dataclass
class PastWorld:
    """One tablet, its model, and what the seed draws.

    Attributes:
        skipped: columns that a schema of the table had which the tablet never applied, with the moment after.
    """

    driver: Driver
    rng: Random
    moments: list[Moment] = field(default_factory=list)
    reads: int = 0
    past_reads: int = 0
    skipped: list[tuple[Any, int]] = field(default_factory=list)
    old_schemas: list[Schema] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._note(self.driver.schema, {})

    @property
    def last(self) -> Moment:
        return self.moments[-1]

    def _note(self, schema: Schema, rows: Rows) -> None:
        self.moments.append(Moment(self.driver.now, schema, rows))

    def value_of(self, kind: pa.DataType) -> Any:
        number = self.rng.randrange(1000)
        return f"s{number}" if kind == pa.string() else number

    def write(self) -> None:
        """Upsert or delete some rows, at times as a client does that has an older schema."""
        rng, now = self.rng, self.last
        known = rng.choice([now.schema, *self.old_schemas[-2:]])
        keys = sorted(rng.sample(range(KEYS), rng.randint(1, 4)))
        rows = {k: dict(v) for k, v in now.rows.items()}
        if rng.random() < 0.2:
            data = [{known.columns[0].name: k} for k in keys]
            self._apply(payload(known, RowOp.DELETE_IGNORE, data, [known.columns[0].name]))
            self._note(now.schema, {k: v for k, v in rows.items() if k not in keys})
            return
        given = [c for c in known.value_columns if rng.random() < 0.7]
        data = [
            {known.columns[0].name: k} | {c.name: self.value_of(c.type) for c in given}
            for k in keys
        ]
        names = [known.columns[0].name, *(c.name for c in given)]
        self._apply(payload(known, RowOp.UPSERT, data, names))
        for key, row in zip(keys, data, strict=True):
            first = {
                c.id: None if c.default is None else c.default.as_py()
                for c in now.schema.value_columns
            }
            kept = {i: v for i, v in rows.get(key, first).items() if i in now.schema.by_id}
            kept |= {c.id: row[c.name] for c in given if c.id in now.schema.by_id}
            rows[key] = kept
        self._note(now.schema, rows)

    def _apply(self, data: bytes) -> None:
        self.driver.results += self.driver.tablet.apply([self.driver.entry(data)])

    def _steps(self, schema: Schema) -> list[Step]:
        rng = self.rng
        values, names = list(schema.value_columns), set(schema.by_name)
        free = [n for n in NAMES if n not in names]
        kind = rng.choice(["drop", "drop", "add", "add", "rename", "default"])
        if kind == "add" and free:
            stored = rng.choice(TYPES)
            default = self.value_of(stored) if rng.random() < 0.5 else None
            return [AddColumn(rng.choice(free), stored, default=default)]
        if not values:
            return [AddColumn(free[0], pa.int64())]
        column = rng.choice(values)
        if kind == "rename" and free:
            return [RenameColumn(column.name, rng.choice(free))]
        if kind == "default":
            return [SetDefault(column.name, self.value_of(column.type))]
        if rng.random() < 0.3:  # dropped, and made again under the same name
            return [DropColumn(column.name), AddColumn(column.name, rng.choice(TYPES))]
        return [DropColumn(column.name)]

    def alter(self) -> None:
        """Alter the table once, or twice with the tablet seeing the second schema only."""
        before = self.last
        self.old_schemas.append(before.schema)
        schema = alter(before.schema, self._steps(before.schema))
        if self.rng.random() < 0.25:
            between, schema = schema, alter(schema, self._steps(schema))
            gone = {*before.schema.by_id, *schema.by_id}
            self.skipped += [(c, before.stamp) for c in between.columns if c.id not in gone]
        self.driver.schema = schema
        assert self.driver.apply_schema(schema) == (1, [])
        added = {
            c.id: None if c.read_default is None else c.read_default.as_py()
            for c in schema.value_columns
            if c.id not in before.schema.by_id
        }
        rows = {
            k: {i: v for i, v in row.items() if i in schema.by_id} | added
            for k, row in before.rows.items()
        }
        self._note(schema, rows)

    def flush(self) -> None:
        self.driver.flush()

    def compact(self) -> None:
        """Compact; at times with an ancient history mark, whatever was read before."""
        horizon = None if self.rng.random() < 0.6 else self.rng.choice(self.moments).stamp
        self.driver.compact(horizon, force=self.rng.random() < 0.8)

    def reopen(self) -> None:
        self.driver.reopen()

    def compact_during_alter(self) -> None:
        """Fix a flush or a compaction, alter and write while it runs, then install it."""
        driver = self.driver
        build = self.rng.choice(
            [
                lambda: driver.tablet.prepare_flush(driver.flush_point()),
                lambda: driver.tablet.prepare_compaction(None, force=True),
            ]
        )()
        self.alter()
        self.write()
        if build is not None:
            build()()

    def read(self) -> None:
        """Compare scans, counts and change feeds with the model at a time that is kept."""
        rng, tablet = self.rng, self.driver.tablet
        kept = [m for m in self.moments if m.stamp >= tablet.horizon]
        if not kept:
            return
        then = rng.choice(kept)
        at = then.stamp + rng.randrange(9)
        self.reads += 1
        self.past_reads += any(c.id not in self.last.schema.by_id for c in then.schema.columns)
        view = tablet.view().at_time(at)
        ids = [c.id for c in then.schema.columns]
        found = [r for b in view.scan(at, ids, ordered=True) for r in by_id(b, ids)]
        assert found == [self.row(then, k) for k in sorted(then.rows)], (at, then.schema)
        self._count(view, then, at)
        since = rng.choice([m for m in kept if m.stamp <= then.stamp])
        self._feed(view, since, then, ids)
        for column, stamp in self.skipped:
            if stamp >= tablet.horizon:
                seen = tablet.view().at_time(stamp, [column]).scan(stamp, [column.id])
                value = column.read_default.as_py()
                assert {v for b in seen for v in b.column(0).to_pylist()} <= {value}

    def _count(self, view: Any, then: Moment, at: int) -> None:
        column = self.rng.choice(then.schema.columns)
        if column.type == pa.string():
            return
        limit = 5 if column.id in then.schema.key_ids else 500
        where = Compare(column.id, CompareOp.LT, pa.scalar(limit, column.type))
        values = [{column.id: k} | v for k, v in then.rows.items()]
        expected = sum(v[column.id] is not None and v[column.id] < limit for v in values)
        if column.id in then.schema.key_ids:
            expected = sum(k < limit for k in then.rows)
        assert view.count(at, where) == expected

    def _feed(self, view: Any, since: Moment, then: Moment, ids: list[ColumnId]) -> None:
        """Compare the net changes between two moments, in the columns of the second one."""
        feed = view.changes(since.stamp, then.stamp, columns=ids)
        rows = {k: v for k, v in since.rows.items() if k in then.rows}
        found = {k: self.row(then, k) for k in rows if since.rows[k] == then.rows[k]}
        for row in (r for b in feed for r in by_id(b, ids)):
            key = row[KEY]
            if row.pop("_op") == "delete":
                assert key not in then.rows
            else:
                found[key] = row
        missing = {k for k in then.rows if k not in found}
        unchanged = {k for k in missing if self._same(since, then, k)}
        assert missing == unchanged
        assert all(found[k] == self.row(then, k) for k in found)

    def _same(self, since: Moment, then: Moment, key: int) -> bool:
        """Return whether no version of a row began between two moments: then its values are those kept."""
        before = since.rows.get(key)
        return before is not None and all(
            then.rows[key][i] == before[i] for i in then.rows[key] if i in before
        )

    def row(self, then: Moment, key: int) -> dict[Any, Any]:
        return {c.id: key if c.id == KEY else then.rows[key][c.id] for c in then.schema.columns}


def by_id(batch: pa.RecordBatch, ids: list[ColumnId]) -> list[dict[Any, Any]]:
    """Return rows with the ids of columns in place of their names, and `_op` of a change feed."""
    names = [*ids, *batch.schema.names[len(ids) :]]
    rows = batch.rename_columns([str(n) for n in names]).to_pylist()
    keys = [*ids, "_op"]
    return [{k: row[str(k)] for k in keys if str(k) in row} for row in rows]


STEPS = (
    *["write"] * 6, *["alter"] * 3, *["read"] * 5, "flush", "flush", "compact", "compact",
    "compact_during_alter", "reopen",
)  # fmt: skip
