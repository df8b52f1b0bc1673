"""Schema alterations: their steps, and which schema may follow another.

A column's id and type never change, and an id is never reused, so that rows and operations older than an
alteration are read by id; `check_successor` enforces this.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from nyala.common.errors import AlreadyPresent, InvalidArgument
from nyala.common.ids import ColumnId
from nyala.common.schema import (
    MAX_COLUMNS,
    MAX_COMMENT_BYTES,
    Column,
    Schema,
    check_column_name,
    check_default,
    check_stored,
    default_scalar,
    utf8_bytes,
)
from nyala.common.types import plain_type

NOT_OURS = "no client of this version sends this; use one of this version"
"""Advice in errors about definitions that only a broken or hostile client can send."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Adds a column, the last one.

    Attributes:
        name: unused.
        type: a supported Arrow type.
        nullable: a column that is not nullable needs a default, which is the value in older rows.
        default: value in older rows, and in new rows that do not set the column until the default is changed;
            None: null.
        immutable: set by the first write of a row and never changed; in older rows it counts as set.
    """

    name: str
    type: pa.DataType
    nullable: bool = True
    default: Any = None
    immutable: bool = False


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drops a column, which reads at earlier times have still; its id is not reused."""

    name: str


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Renames a column, which may be a key column."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class SetDefault:
    """Changes the default of new rows; None: no default. Existing rows keep their values."""

    name: str
    default: Any


@dataclass(frozen=True, slots=True)
class AllowNulls:
    """Makes a column nullable. The reverse is not supported, because a row may hold a null."""

    name: str


@dataclass(frozen=True, slots=True)
class SetComment:
    """Changes the comment of a column, which may be a key column."""

    name: str
    comment: str


Change = DropColumn | RenameColumn | SetDefault | AllowNulls | SetComment
Step = AddColumn | Change


def alter(schema: Schema, steps: Sequence[Step]) -> Schema:
    """Return the next version of a schema: the steps applied in order.

    Raises:
        NotFound: an unknown column.
        AlreadyPresent: a column with that name exists.
        InvalidArgument: no steps, an unsupported change of a key column, an invalid name, type or default,
            too many columns.
    """
    if not steps:
        raise InvalidArgument(
            "an alteration needs at least one step, and this one has none; add a step"
        )
    made = schema
    for step in steps:
        made = _add(made, step) if isinstance(step, AddColumn) else _change(made, step)
    made = replace(made, version=schema.version + 1)
    check_successor(schema, made)
    return made


def _add(schema: Schema, step: AddColumn) -> Schema:
    _check_free(schema, step.name)
    stored = plain_type(step.type)
    check_stored(step.name, stored)
    default = None if step.default is None else default_scalar(step.name, step.default, stored)
    if default is None and not step.nullable:
        raise InvalidArgument(
            f"column {step.name!r} is not nullable, so it needs a default for the existing rows; "
            "give a default, or allow nulls"
        )
    column = Column(
        ColumnId(schema.next_column_id),
        step.name,
        stored,
        step.nullable,
        default,
        step.immutable,
        pa.scalar(None, stored) if default is None else default,
    )
    columns = (*schema.columns, column)
    return replace(schema, columns=columns, next_column_id=schema.next_column_id + 1)


def _change(schema: Schema, step: Change) -> Schema:
    old = schema.column(step.name)
    new: list[Column] = []
    if isinstance(step, RenameColumn):
        if step.new_name != step.name:
            _check_free(schema, step.new_name)
        new = [replace(old, name=step.new_name)]
    elif isinstance(step, SetComment):
        new = [replace(old, comment=step.comment)]
    elif old.id in schema.key_ids:
        raise InvalidArgument(
            f"column {step.name!r} is part of the primary key: it can be renamed and given a comment, but "
            "not dropped, and it has no default and no nulls; create a new table for another key"
        )
    elif isinstance(step, SetDefault):
        given = step.default
        default = None if given is None else default_scalar(step.name, given, old.type)
        new = [replace(old, default=default)]
    elif isinstance(step, AllowNulls):
        new = [replace(old, nullable=True)]
    at = schema.columns.index(old)
    return replace(schema, columns=(*schema.columns[:at], *new, *schema.columns[at + 1 :]))


def _check_free(schema: Schema, name: str) -> None:
    check_column_name(name)
    if name in schema.by_name:
        raise AlreadyPresent(f"a column {name!r} already exists; choose another name")


def check_schema(schema: Schema) -> None:
    """Reject an invalid schema.

    Raises:
        InvalidArgument: a duplicate id or name, key columns that are not the first ones, an id that is not
            below the next one, a default of another type or too large, too many columns, a long comment.
    """
    ids, names = [c.id for c in schema.columns], [c.name for c in schema.columns]
    keys = list(schema.key_ids)
    if len(set(ids)) != len(ids) or len(set(names)) != len(names):
        raise InvalidArgument(f"a column id or name appears twice in the schema; {NOT_OURS}")
    if not keys or keys != ids[: len(keys)]:
        raise InvalidArgument(
            f"the key columns {keys} are not the first columns of {ids}; {NOT_OURS}"
        )
    if len(ids) > MAX_COLUMNS:
        raise InvalidArgument(
            f"{len(ids)} columns; a table has at most {MAX_COLUMNS}; drop some, or use a second table"
        )
    if max(ids) >= schema.next_column_id:
        raise InvalidArgument(
            f"next column id {schema.next_column_id} is not above {max(ids)}; {NOT_OURS}"
        )
    for column in schema.columns:
        if column.id in keys and (
            column.nullable or column.default is not None or column.read_default is not None
        ):
            raise InvalidArgument(
                f"key column {column.name[:80]!r} is nullable or has a default; {NOT_OURS}"
            )
        if utf8_bytes(column.comment) > MAX_COMMENT_BYTES:
            raise InvalidArgument(
                f"the comment of column {column.name[:80]!r} has over {MAX_COMMENT_BYTES} bytes; "
                "write a shorter one"
            )
        for default in (column.default, column.read_default):
            if default is None:
                continue
            if default.type != column.type:
                raise InvalidArgument(
                    f"column {column.name[:80]!r} of type {column.type} has a default of type "
                    f"{default.type}; {NOT_OURS}"
                )
            check_default(column.name[:80], default)


def check_successor(old: Schema, new: Schema) -> None:
    """Reject a schema that cannot follow another one, directly or indirectly.

    Raises:
        InvalidArgument: as `check_schema`; or the version does not increase, the key changes, a column
            changes its type or its value in older rows or becomes not nullable, or a new column has a used id
            or no value for older rows.
    """
    check_schema(new)
    if new.version <= old.version or new.next_column_id < old.next_column_id:
        raise InvalidArgument(
            f"version {new.version} with next column id {new.next_column_id} does not come after "
            f"version {old.version} with {old.next_column_id}; {NOT_OURS}"
        )
    if new.key_ids != old.key_ids:
        raise InvalidArgument(
            f"the key {list(old.key_ids)} would become {list(new.key_ids)}; {NOT_OURS}"
        )
    for column in new.columns:
        before = old.by_id.get(column.id)
        if before is not None:
            _check_kept(before, column)
        elif column.id < old.next_column_id:
            raise InvalidArgument(
                f"column id {column.id} of {column.name[:80]!r} was used before; {NOT_OURS}"
            )
        elif column.read_default is None or not (column.nullable or column.read_default.is_valid):
            raise InvalidArgument(
                f"column {column.name[:80]!r} has no value in older rows; {NOT_OURS}"
            )


def _check_kept(old: Column, new: Column) -> None:
    if new.type != old.type or not _same(new.read_default, old.read_default):
        raise InvalidArgument(
            f"column {old.name[:80]!r} would change its type or its value in older rows; {NOT_OURS}"
        )
    if old.nullable and not new.nullable:
        raise InvalidArgument(
            f"column {old.name[:80]!r} allows nulls, and a row may already hold one, so this "
            "cannot be reverted; "
            "add a new column instead"
        )
    if new.immutable and not old.immutable:
        raise InvalidArgument(f"column {old.name[:80]!r} cannot become immutable; {NOT_OURS}")


def _same(one: pa.Scalar | None, other: pa.Scalar | None) -> bool:
    if one is None or other is None:
        return one is other
    if pa.types.is_floating(one.type) and one.is_valid and other.is_valid:  # NaN counts as equal
        return struct.pack("<d", one.as_py()) == struct.pack("<d", other.as_py())
    return bool(one.equals(other))
