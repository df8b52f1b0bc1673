"""The tablet's twin: a dictionary of rows and the list of what happened, row by row in plain Python."""

from dataclasses import dataclass, field
from typing import Any

from nyala.common.schema import Schema
from nyala.tablet.ops import Op

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass
class Model:
    schema: Schema
    rows: dict[Key, Row] = field(default_factory=dict)
    history: dict[int, dict[Key, Row]] = field(default_factory=lambda: {0: {}})
    events: list[tuple[int, Key, str, Row]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.schema.columns]

    @property
    def keys(self) -> list[str]:
        return [c.name for c in self.schema.key_columns]

    def write(
        self, stamp: int, op: Op, rows: list[Row], columns: list[str], all_or_nothing: bool
    ) -> tuple[int, list[tuple[int, str]]]:
        """Apply one batch; return what the tablet's result has to say."""
        state: dict[Key, Row] = dict(self.rows)
        written: set[Key] = set()
        errors: list[tuple[int, str]] = []
        for number, row in enumerate(rows):
            kind = Op(row["_op"]) if op is Op.MIXED else op
            code = self._one(state, written, kind, row, columns)
            if code:
                errors.append((number, code))
        if errors and all_or_nothing:
            self.history[stamp] = dict(self.rows)
            return 0, errors
        for key in sorted(written):
            before, after = self.rows.get(key), state.get(key)
            if after is not None:
                self.events.append((stamp, key, "update" if before else "insert", after))
            elif before is not None:
                self.events.append((stamp, key, "delete", before))
        self.rows = state
        self.history[stamp] = dict(state)
        return len(rows) - len(errors), errors

    def _one(
        self, state: dict[Key, Row], written: set[Key], kind: Op, row: Row, columns: list[str]
    ) -> str | None:
        key = tuple(row[n] for n in self.keys)
        if None in key:
            return "null_key"
        deletes = kind in (Op.DELETE, Op.DELETE_IGNORE)
        given = {n: row[n] for n in columns}
        if not deletes:
            for column in self.schema.value_columns:
                if column.name in given and given[column.name] is None and not column.nullable:
                    return "null_value"
        old = state.get(key)
        ignore = kind.name.endswith("_IGNORE")
        if deletes:
            if old is None:
                return None if ignore else "not_found"
            del state[key]
        elif old is None:
            if kind in (Op.UPDATE, Op.UPDATE_IGNORE):
                return None if ignore else "not_found"
            new = {}
            for column in self.schema.columns:
                default = None if column.default is None else column.default.as_py()
                new[column.name] = given.get(column.name, default)
                if new[column.name] is None and not column.nullable:
                    return "null_value"
            state[key] = new
        else:
            if kind in (Op.INSERT, Op.INSERT_IGNORE):
                return None if ignore else "already_present"
            for column in self.schema.value_columns:
                if (
                    column.immutable
                    and column.name in given
                    and given[column.name] != old[column.name]
                ):
                    return None if ignore else "immutable"
            state[key] = {**old, **given}
        written.add(key)
        return None

    def at(self, stamp: int) -> dict[Key, Row]:
        """The rows at a time."""
        return self.history[max(s for s in self.history if s <= stamp)]

    def by_version(self, since: int, until: int) -> list[Row]:
        """Every version that began, or ended without a successor, in (since, until]."""
        return [self._change(*e) for e in self.events if since < e[0] <= until]

    def net(self, since: int, until: int) -> list[Row]:
        """One change per key that was written and differs in being there, or was written anew."""
        before, after = self.at(since), self.at(until)
        last: dict[Key, tuple[int, Key, str, Row]] = {}
        for event in self.events:
            if since < event[0] <= until:
                last[event[1]] = event
        found = []
        for stamp, key, op, row in sorted(last.values(), key=lambda e: (e[0], e[1])):
            if op != "delete":
                found.append((stamp, key, "update" if key in before else "insert", row))
            elif key in before:
                found.append((stamp, key, "delete", row))
            assert (op == "delete") == (key not in after)
        return [self._change(*e) for e in found]

    def _change(self, stamp: int, key: Key, op: str, row: Row) -> Row:
        shown = row
        if op == "delete":
            shown = {n: row[n] if n in self.keys else None for n in self.names}
        return {**shown, "_op": op, "_timestamp": stamp}
