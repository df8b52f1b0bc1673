"""Model of a tablet: a dictionary of rows and the list of their changes, in plain Python.

Rows are kept by column id, as they were written: an altered schema only needs the ids. A column that a row
lacks has the default of the added column. Rows are shown by name.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from nyala.common.ids import ColumnId
from nyala.common.schema import Column, Schema
from nyala.common.types import MAX_CELL_BYTES
from nyala.tablet.files.replicated_ops import RowOp

Row = dict[str, Any]
Stored = dict[ColumnId, Any]
Key = tuple[Any, ...]
DELETES = (RowOp.DELETE, RowOp.DELETE_IGNORE)
WRITES = tuple(op for op in RowOp if op is not RowOp.MIXED)


def same(one: Any, other: Any) -> bool:
    """Return whether two cells are equal; floats are compared by bits, so that NaN equals itself."""
    return bool(exact(one) == exact(other))


def exact(value: Any) -> Any:
    """Return a cell, or a structure of cells, as a value with exact equality."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {k: exact(v) for k, v in value.items()}
    return [exact(v) for v in value] if isinstance(value, list) else value


def plain(value: pa.Scalar | None) -> Any:
    """Return a scalar as a Python value."""
    return None if value is None else value.as_py()


@dataclass
class Model:
    schema: Schema
    rows: dict[Key, Stored] = field(default_factory=dict)
    stamps: list[int] = field(default_factory=lambda: [0])
    states: list[dict[Key, Stored]] = field(default_factory=lambda: [{}])
    events: list[tuple[int, Key, str, Stored]] = field(default_factory=list)

    @property
    def key_names(self) -> list[str]:
        return [c.name for c in self.schema.key_columns]

    def write(
        self,
        stamp: int,
        op: RowOp,
        rows: list[Row],
        columns: list[str],
        all_or_nothing: bool = False,
        under: Schema | None = None,
    ) -> tuple[int, list[tuple[int, str]]]:
        """Apply one batch, written for this schema or an older one; return the expected result."""
        state: dict[Key, Stored] = dict(self.rows)
        written: set[Key] = set()
        errors: list[tuple[int, str]] = []
        named = [(under or self.schema).column(n) for n in columns]
        given = [c for c in named if c.id in self.schema.by_id]
        for number, row in enumerate(rows):
            cells = {c.id: row[c.name] for c in given}
            code = self._one(state, written, row["_op"] if op is RowOp.MIXED else op, cells)
            if code:
                errors.append((number, code))
        if errors and all_or_nothing:
            self._remember(stamp)
            return 0, errors
        for key in sorted(written):
            before, after = self.rows.get(key), state.get(key)
            if after is not None:
                self.events.append((stamp, key, "update" if before else "insert", after))
            elif before is not None:
                self.events.append((stamp, key, "delete", before))
        self.rows = state
        self._remember(stamp)
        return len(rows) - len(errors), errors

    def _remember(self, stamp: int) -> None:
        assert stamp > self.stamps[-1]
        self.stamps.append(stamp)
        self.states.append(self.rows)

    def _one(
        self, state: dict[Key, Stored], written: set[Key], code: int, given: Stored
    ) -> str | None:
        if code not in WRITES:
            return "out_of_range"
        kind, key = RowOp(code), tuple(given[i] for i in self.schema.key_ids)
        if None in key:
            return "null_key"
        ignore = kind.name.endswith("_IGNORE")
        old = state.get(key)
        if kind in DELETES:
            if old is None:
                return None if ignore else "not_found"
            del state[key]
        else:
            wrong = self._wrong(given)
            if wrong:
                return wrong
            if old is None and kind in (RowOp.UPDATE, RowOp.UPDATE_IGNORE):
                return None if ignore else "not_found"
            if old is not None and kind in (RowOp.INSERT, RowOp.INSERT_IGNORE):
                return None if ignore else "already_present"
            old = None if old is None else self.whole(old)
            base = self.defaults() if old is None else old
            new = {**base, **given}
            for column in self.schema.value_columns:
                if old is None and new[column.id] is None and not column.nullable:
                    return "null_value"
                if old and column.immutable and not same(new[column.id], old[column.id]):
                    return None if ignore else "immutable"
            state[key] = new
        written.add(key)
        return None

    def _wrong(self, given: Stored) -> str | None:
        for column in self.schema.value_columns:
            if column.id in given:
                value = given[column.id]
                if value is None and not column.nullable:
                    return "null_value"
                size = len(value.encode()) if isinstance(value, str) else 0
                if max(size, len(value) if isinstance(value, bytes) else 0) > MAX_CELL_BYTES:
                    return "too_large"
        return None

    def defaults(self) -> Stored:
        """Return the values of a new row in columns that are not given."""
        return {c.id: plain(c.default) for c in self.schema.columns}

    def whole(self, row: Stored) -> Stored:
        """Convert a row to the present schema: defaults of added columns, no dropped columns."""
        return {
            c.id: row[c.id] if c.id in row else plain(c.read_default) for c in self.schema.columns
        }

    def state_at(self, stamp: int) -> dict[Key, Stored]:
        """Return the rows at a time, by column id."""
        found = self.states[bisect_right(self.stamps, stamp) - 1]
        return {k: self.whole(row) for k, row in found.items()}

    def at(self, stamp: int) -> dict[Key, Row]:
        """Return the rows at a time in key order, by column name."""
        return {k: self.shown(row) for k, row in sorted(self.state_at(stamp).items())}

    def shown(self, row: Stored, only: tuple[Column, ...] | None = None) -> Row:
        """Return one row by column name, with all columns or some."""
        return {c.name: row[c.id] for c in only or self.schema.columns}

    def by_version(self, since: int, until: int) -> list[tuple[int, Key, str, Stored]]:
        """Return each version that began, or ended without a successor, in (since, until]."""
        found = [e for e in self.events if since < e[0] <= until]
        return [(stamp, key, op, self.whole(row)) for stamp, key, op, row in found]

    def net(self, since: int, until: int) -> list[tuple[int, Key, str, Stored]]:
        """Return one change per key: written, or deleted if it existed before."""
        before, after = self.state_at(since), self.state_at(until)
        last = {e[1]: e for e in self.by_version(since, until)}
        found = []
        for stamp, key, op, row in sorted(last.values(), key=lambda e: (e[0], e[1])):
            if op != "delete":
                found.append((stamp, key, "update" if key in before else "insert", row))
            elif key in before:
                found.append((stamp, key, "delete", before[key]))
            assert (op == "delete") == (key not in after)
        return found

    def change(self, event: tuple[int, Key, str, Stored]) -> Row:
        """Return one entry of a change feed as it is read: a delete has the key columns only."""
        stamp, _, op, row = event
        shown = self.shown(row)
        if op == "delete":
            shown = {n: v if n in self.key_names else None for n, v in shown.items()}
        return {**shown, "_op": op, "_timestamp": stamp}
