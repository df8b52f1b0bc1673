"""Options of a write job, checked in the driver.

`op` (upsert by default, or any other write); `op_column` (a column that names each row's op); or
`kind_column` with one option `kind.<value>` = "<op>: <column>, ..." for each value: rows of a kind are
written with that op, and only that kind's columns (the key is always there). `atomic` (true by default): the
job takes effect as a whole, in a transaction. `job_id`: an atomic job that takes effect once, however often
it is submitted. `where`, of mode("overwrite"): the rows that are replaced, and to which all rows of the frame
belong; without it, all rows of the table. Spark passes option names in lower case, so values are looked up
without regard to case.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from nyala.client.calls.rows import IN_TRANSACTIONS, OPS
from nyala.common.errors import InvalidArgument, SchemaMismatch
from nyala.common.expressions.predicate import columns_of
from nyala.common.expressions.where import parse
from nyala.common.ids import ColumnId
from nyala.common.schema import Schema
from nyala.common.values.casting import check_types
from nyala.spark.clients import PlannedTable, writing_client, written_table
from nyala.spark.options import check_known, flag, split

KIND_PREFIX = "kind."
NAMES = (
    "atomic", "ca", "cert", "job_id", "key", "kind_column", "masters", "new_checkpoint", "op", "op_column",
    "query_name", "table", "where",
)  # fmt: skip
EVERY_ROW = "true"
REPLACING = ("upsert", "upsert_ignore", "insert_ignore")
"""Operations of a job that replaces rows."""
OF_SPARK = ("path", "queryname", "checkpointlocation")
"""Options that Spark adds by itself."""


@dataclass(frozen=True, slots=True)
class RowKinds:
    """Operation and columns of the rows of one kind."""

    op: str
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """Options of one write job.

    Attributes:
        table: name of the table.
        masters: their addresses.
        op: operation of every row, when neither column is given.
        op_column: names each row's op; empty: none.
        kind_column: names each row's kind; empty: none.
        kinds: by the kind's value in lower case.
        write_id: names the job: all tries of its tasks share it.
        since: hybrid time before which none of them wrote.
        atomic: the job takes effect as a whole.
        job_id: under which it takes effect once; empty: none.
        replaced: condition of the rows that are deleted before the frame is written; empty: none.
        replaced_columns: id and name of each column that it names.
        planned: the table as it was checked; None: not known.
    """

    table: str
    masters: str
    op: str
    op_column: str
    kind_column: str
    kinds: dict[str, RowKinds]
    write_id: str
    since: int
    atomic: bool = True
    job_id: str = ""
    replaced: str = ""
    replaced_columns: tuple[tuple[ColumnId, str], ...] = ()
    planned: PlannedTable | None = None

    @classmethod
    def of(
        cls,
        table: str,
        masters: str,
        options: Mapping[str, str],
        frame: pa.Schema,
        *,
        overwrite: bool = False,
    ) -> "WriteOptions":
        """Check the options of a write against the frame's columns and the table, in the driver.

        Args:
            table: name of the table.
            masters: their addresses.
            options: as Spark gives them.
            frame: its columns.
            overwrite: rows of the table are replaced.

        Raises:
            InvalidArgument: an unknown op, a column that is not in the frame or the table.
            SchemaMismatch: a column whose type does not convert, or a missing key column.
            NotFound: no such table.
        """
        own = {n: v for n, v in options.items() if n.lower() not in OF_SPARK}
        check_known(
            {n: v for n, v in own.items() if not n.startswith(KIND_PREFIX)}, NAMES, "a write"
        )
        op, op_column = options.get("op", "upsert"), options.get("op_column", "")
        atomic, job_id = flag(options, "atomic", True), options.get("job_id", "")
        kind_column = options.get("kind_column", "")
        kinds = {
            name.removeprefix(KIND_PREFIX).lower(): _kind(name, text)
            for name, text in options.items()
            if name.startswith(KIND_PREFIX)
        }
        if op not in OPS:
            raise InvalidArgument(f"option op={op!r}; ops are: {', '.join(OPS)}")
        special = [c for c in (op_column, kind_column) if c]
        if len(special) > 1 or bool(kind_column) != bool(kinds):
            raise InvalidArgument(
                "give op_column, or kind_column with kind.<value> options, or neither"
            )
        if atomic:
            _check_atomic([k.op for k in kinds.values()] or ([] if op_column else [op]))
        elif job_id:
            raise InvalidArgument("job_id is of atomic jobs: leave out atomic=false, or job_id")
        replaced = _replaced(options, overwrite)
        if replaced:
            _check_overwrite(op, special, atomic=atomic)
        for column in [*special, *(c for k in kinds.values() for c in k.columns)]:
            if column not in frame.names:
                raise InvalidArgument(
                    f"the frame has no column {column!r}; it has: {', '.join(frame.names)}"
                )
        opened, since = written_table(masters, table), writing_client(masters).now()
        schema = opened.definition
        _check_columns(table, schema, frame, special)
        if replaced:
            _check_condition(replaced, schema, frame)
        named = columns_of_condition(replaced, schema) if replaced else ()
        return cls(
            table, masters, op, op_column, kind_column, kinds, os.urandom(16).hex(), since, atomic, job_id,
            replaced, named, PlannedTable.of(opened),
        )  # fmt: skip


def _check_atomic(ops: list[str]) -> None:
    """Refuse operations that may fail because of what is in the table."""
    bad = sorted(set(ops) - set(IN_TRANSACTIONS))
    if bad:
        raise InvalidArgument(
            f"op {', '.join(bad)}: whether a row fails depends on the table at the time of the commit, so an "
            f"atomic job takes these ops only: {', '.join(IN_TRANSACTIONS)}; use one of them, or option "
            "atomic=false, with which each row takes effect by itself"
        )


def _replaced(options: Mapping[str, str], overwrite: bool) -> str:
    """Return the condition of the rows that a job replaces; empty: it replaces none."""
    where = options.get("where", "")
    if where and not overwrite:
        raise InvalidArgument(
            'option "where" of a write names the rows that mode("overwrite") replaces; use that mode, or '
            "frame.filter(...) to write some rows only"
        )
    return (where or EVERY_ROW) if overwrite else ""


def _check_overwrite(op: str, special: list[str], *, atomic: bool) -> None:
    """Refuse options with which a job could not replace rows as a whole."""
    if not atomic:
        raise InvalidArgument(
            'mode("overwrite") replaces rows in one transaction, so it cannot have atomic=false; leave that '
            'option out, or delete the rows with table.delete_where(...) and use mode("append")'
        )
    if special or op not in REPLACING:
        raise InvalidArgument(
            'with mode("overwrite") the frame has the new rows, so op_column and kind_column have no meaning '
            f'and op is one of: {", ".join(REPLACING)}; use mode("append") for other changes'
        )


def columns_of_condition(where: str, schema: Schema) -> tuple[tuple[ColumnId, str], ...]:
    """Return the columns that a condition names: id and name of each.

    Raises:
        InvalidArgument: it is none, or names columns that the table does not have.
    """
    return tuple((i, schema.by_id[i].name) for i in columns_of(parse(where, schema)))


def _check_condition(where: str, schema: Schema, frame: pa.Schema) -> None:
    """Refuse a condition that is none of the table, or has columns that the frame does not give."""
    names = [name for _, name in columns_of_condition(where, schema)]
    if lacking := [n for n in names if n not in frame.names]:
        raise InvalidArgument(
            f"option where={where!r} reads column {lacking[0]!r}, which the frame lacks, so it is unknown "
            f"whether its rows belong there; add the column, or use another condition"
        )


def _check_columns(table: str, schema: Schema, frame: pa.Schema, special: list[str]) -> None:
    """Refuse a frame of which no row could be written, before any task runs."""
    for key in schema.key_columns:
        if key.name not in frame.names:
            raise SchemaMismatch(
                f"the frame lacks the key column {key.name!r} of table {table!r}; it has: "
                f"{', '.join(frame.names)}"
            )
    for column in special:
        if not pa.types.is_string(frame.field(column).type):
            raise SchemaMismatch(
                f"column {column!r} has type {frame.field(column).type}; it names each row's op or kind: "
                "make it a string"
            )
    for field in frame:
        if field.name in special:
            continue
        if field.name not in schema.by_name:
            raise InvalidArgument(
                f"table {table!r} has no column {field.name!r}; its columns are: {', '.join(schema.by_name)}"
            )
        stored = schema.column(field.name).type
        if pa.types.is_decimal(field.type) and pa.types.is_floating(stored):
            raise SchemaMismatch(
                f"column {field.name!r} has type {field.type}, but the table stores {stored}: decimal "
                "fractions are not binary ones, and a literal such as 0.5 is a decimal in Spark SQL; round "
                f"it to the nearest value: cast({field.name} as {stored}), or col.cast({str(stored)!r})"
            )
        check_types(field.type, stored, f"column {field.name!r}")


def _kind(name: str, text: str) -> RowKinds:
    op, _, columns = text.partition(":")
    if op.strip() not in OPS:
        raise InvalidArgument(
            f"option {name}={text!r}: write '<op>: <column>, ...'; ops: {', '.join(OPS)}"
        )
    return RowKinds(op.strip(), tuple(split(columns)))
