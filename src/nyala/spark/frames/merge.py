"""Merge of a frame into a table: rows that match by key, that are new, and that the frame lacks.

The frame is joined with the table's rows at one snapshot, and the changes are written in one transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from typing import Literal

from pyspark.sql import Column, DataFrame, Observation, Window
from pyspark.sql import functions as f

from nyala.client.checks import check_text
from nyala.client.table import Table
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.hybrid_time import as_stamp
from nyala.spark.clients import check_same, process_client
from nyala.spark.frames.read import quoted, read
from nyala.spark.options import masters_of

KIND = "_change"
_SOURCE, _TARGET = "source", "target"
_IN_SOURCE, _IN_TARGET, _SAME_KEY = "_in_source", "_in_target", "_same_key"
_OPS = {
    "update": "update_ignore",
    "update_target": "update_ignore",
    "insert": "upsert",
    "delete": "delete_ignore",
}

Assignments = Mapping[str, str | Column]
"""Expression of each column that is set, over `source.<column>` and `target.<column>`: SQL, or a `Column`."""


@dataclass(frozen=True, slots=True)
class MergeCounts:
    """Numbers of rows that a merge has changed.

    Attributes:
        updated: rows in both, which were written again.
        inserted: rows of the frame only, which were added.
        deleted: rows that were deleted, in both or in the table only.
    """

    updated: int
    inserted: int
    deleted: int


def merge(
    frame: DataFrame,
    table: str,
    *,
    when_matched: Literal["update", "delete"] | Assignments | None = "update",
    when_not_matched: Literal["insert"] | Assignments | None = "insert",
    when_not_matched_by_source: Literal["delete"] | Assignments | None = None,
    at: int | datetime | None = None,
    masters: str | None = None,
) -> MergeCounts:
    """Merge a frame into a table by primary key, in one transaction: all changes become visible, or none.

    The rows of the table are those of one snapshot. The transaction does not lock them: a row that another
    client changes between the snapshot and the commit is overwritten in the columns that are set.

    Args:
        frame: the source; has the key columns, without nulls and with at most one row for each key.
        table: name of the table, the target.
        when_matched: for rows in both: "update" sets all columns of the frame, "delete" deletes the row,
            assignments set their columns, None leaves the row.
        when_not_matched: for rows of the frame only: "insert" adds a row with all columns of the frame,
            assignments one with key and these columns, None does nothing.
        when_not_matched_by_source: for rows of the table only: "delete" deletes the row, assignments over
            `target.<column>` set their columns, None leaves the row.
        at: hybrid time or aware datetime of the snapshot; None: now.
        masters: addresses of the masters; None: NYALA_MASTERS of the driver.

    Returns:
        The numbers of rows changed.

    Raises:
        InvalidArgument: nothing to do, an unknown word, assignments to key columns, or no masters.
        SchemaMismatch: the frame lacks a key column, or a column is not of the table.
        NotFound: no such table, or it was dropped meanwhile.
        PySparkException: the job failed, for instance since the frame has two rows of one key; nothing of it
            took effect.
    """
    check_text("table", table)
    addresses = masters_of(masters)
    client = process_client(addresses)
    opened = client.table(table)
    time = as_stamp(at) if at is not None else client.now()
    plan = _Plan(frame, opened, when_matched, when_not_matched, when_not_matched_by_source)
    target = read(
        frame.sparkSession, table, columns=plan.target_columns, at=time, masters=addresses
    )
    check_same(client.table(table), opened.id)  # another table has no rows at this time
    changes = plan.changes(target)
    seen = Observation()
    counted = [f.count_if(f.col(KIND) == kind).alias(kind) for kind in plan.options]
    rows = changes.observe(seen, f.count(f.lit(1)).alias("rows"), *counted)
    options = {f"kind.{kind}": text for kind, text in plan.options.items()}
    rows.write.format("nyala").options(
        table=table, masters=addresses, kind_column=KIND, **options
    ).mode("append").save()
    found = seen.get
    return MergeCounts(
        updated=found.get("update", 0) + found.get("update_target", 0),
        inserted=found.get("insert", 0),
        deleted=found.get("delete", 0),
    )


class _Plan:
    """The kinds of changes of one merge, and the columns that each of them sets."""

    def __init__(
        self,
        frame: DataFrame,
        table: Table,
        matched: str | Assignments | None,
        not_matched: str | Assignments | None,
        by_source: str | Assignments | None,
    ) -> None:
        self._frame = frame
        self._table = table.name
        self._keys = table.primary_key
        self._stored = table.schema.names
        self._check_frame()
        self._sets: dict[str, Assignments] = {}
        self._deletes = (matched == "delete", by_source == "delete")
        self._add("update", "when_matched", matched, ("update", "delete"))
        self._add("insert", "when_not_matched", not_matched, ("insert",))
        self._add("update_target", "when_not_matched_by_source", by_source, ("delete",))
        if not self._sets and not any(self._deletes):
            raise InvalidArgument(
                "this merge changes nothing: give when_matched, when_not_matched or "
                "when_not_matched_by_source"
            )

    def _check_frame(self) -> None:
        for key in self._keys:
            if key not in self._frame.columns:
                raise SchemaMismatch(
                    f"the frame lacks the key column {key!r} of table {self._table!r}; it has: "
                    f"{', '.join(self._frame.columns)}"
                )
        for name in (KIND, _IN_SOURCE, _IN_TARGET, _SAME_KEY):
            if name in self._frame.columns or name in self._stored:
                raise SchemaMismatch(f"a merge uses the column name {name!r} itself; rename it")

    def _add(
        self, kind: str, name: str, action: str | Assignments | None, words: Sequence[str]
    ) -> None:
        """Add what is set in rows of a kind; deletes set nothing."""
        if action is None or (action == "delete" and "delete" in words):
            return
        if isinstance(action, str):
            if action not in words:
                choices = ", ".join(repr(w) for w in words)
                raise InvalidArgument(f"{name}={action!r}: pass {choices}, assignments, or None")
            names = [c for c in self._frame.columns if c not in self._keys]
            action = {c: f.col(f"{_SOURCE}.{quoted(c)}") for c in names}
        for column in action:
            if column in self._keys:
                raise InvalidArgument(
                    f"{name} sets the key column {column!r}, which identifies the row; leave it out"
                )
            if column not in self._stored:
                raise SchemaMismatch(
                    f"{name} sets {column!r}, which is no column of table {self._table!r}; there are: "
                    f"{', '.join(self._stored)}. Select columns of the frame, or pass assignments"
                )
        if action or kind == "insert":
            self._sets[kind] = action

    @property
    def target_columns(self) -> list[str]:
        """Columns that are read of the table: all if assignments may use them, else those of the key."""
        own = [e for s in self._sets.values() for e in s.values()]
        plain = [str(f.col(f"{_SOURCE}.{quoted(c)}")) for c in self._frame.columns]
        used = any(isinstance(e, str) or str(e) not in plain for e in own)
        return self._stored if used else self._keys

    @property
    def options(self) -> dict[str, str]:
        """Operation and columns of each kind of change, as options of a write."""
        texts = {k: f"{_OPS[k]}: {', '.join(s)}" for k, s in self._sets.items()}
        return texts | ({"delete": _OPS["delete"]} if any(self._deletes) else {})

    def changes(self, target: DataFrame) -> DataFrame:
        """Return the changed rows: the key, the columns that any kind sets, and the kind.

        Args:
            target: rows of the table, with `target_columns`.
        """
        keys = [f.col(quoted(k)) for k in self._keys]
        known = reduce(Column.__and__, [k.isNotNull() for k in keys])
        same = f.when(known, f.count(f.lit(1)).over(Window.partitionBy(*keys)))
        source = self._frame.withColumn(_SAME_KEY, same).withColumn(_IN_SOURCE, f.lit(True))
        joined = source.alias(_SOURCE).join(
            target.withColumn(_IN_TARGET, f.lit(True)).alias(_TARGET),
            reduce(Column.__and__, [_of(_SOURCE, k) == _of(_TARGET, k) for k in self._keys]),
            self._how(),
        )
        kind = self._kind()
        names = dict.fromkeys(c for s in self._sets.values() for c in s)
        return joined.select(
            *(f.coalesce(_of(_SOURCE, k), _of(_TARGET, k)).alias(k) for k in self._keys),
            *(self._value(name, kind).alias(name) for name in names),
            kind.alias(KIND),
        ).where(f.col(KIND).isNotNull())

    def _how(self) -> str:
        of_target = "update_target" in self._sets or self._deletes[1]
        if "insert" in self._sets:
            return "full" if of_target else "left"
        return "right" if of_target else "inner"

    def _kind(self) -> Column:
        """Return the kind of change of a joined row; null: none."""
        repeated = f.concat(
            f.lit("the source of the merge has several rows with the key "),
            f.to_json(f.struct(*(_of(_SOURCE, k).alias(k) for k in self._keys))),
            f.lit("; keep one of them, for instance with dropDuplicates()"),
        )
        in_source, in_target = f.col(_IN_SOURCE).isNotNull(), f.col(_IN_TARGET).isNotNull()
        return (
            f.when(f.col(_SAME_KEY) > 1, f.raise_error(repeated).cast("string"))
            .when(in_source & in_target, self._name("update", self._deletes[0]))
            .when(in_source, self._name("insert", False))
            .otherwise(self._name("update_target", self._deletes[1]))
        )

    def _name(self, kind: str, deletes: bool) -> Column:
        name = "delete" if deletes else kind if kind in self._sets else None
        return f.lit(name).cast("string")

    def _value(self, name: str, kind: Column) -> Column:
        """Return the value of a column in a joined row, by the kind of its change."""
        value = f.lit(None)
        for one, expressions in self._sets.items():
            if name in expressions:
                given = expressions[name]
                new = f.expr(given) if isinstance(given, str) else given
                value = f.when(kind == one, new).otherwise(value)
        return value


def _of(side: str, column: str) -> Column:
    return f.col(f"{side}.{quoted(column)}")
