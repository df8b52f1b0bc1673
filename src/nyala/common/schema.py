"""Columns and schemas, and their conversion from and to Arrow. Formats and messages name columns by id.

Partitioning is in `common/partitioning/partition.py`, the wire encoding in `wire/convert.py`.
"""

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import pyarrow as pa

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.ids import ColumnId
from nyala.common.types import plain_type, type_name
from nyala.common.values.python_values import scalar_of, shown

_NOT_KEYS = frozenset({pa.bool_(), pa.float32(), pa.float64()})
MAX_COLUMNS = 1000
MAX_NAME_BYTES = 256
MAX_COMMENT_BYTES = 1024
SHOWN_COLUMNS = 20
"""Number of columns that an error names."""
MAX_DEFAULT_BYTES = 1024
"""Maximum size of a default in bytes: rows older than a column are read with it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        id: never reused in a table.
        name: unique in a schema, at most 256 bytes of UTF-8.
        type: the stored Arrow type.
        nullable: False for key columns.
        default: a scalar for new rows that do not set the column; None: no default.
        immutable: set by the first write of a row and never changed.
        read_default: value (may be null) in rows older than the column: its default when it was added,
            independent of the present `default`; None: there are no such rows.
        comment: free text.
    """

    id: ColumnId
    name: str
    type: pa.DataType
    nullable: bool = True
    default: pa.Scalar | None = None
    immutable: bool = False
    read_default: pa.Scalar | None = None
    comment: str = ""

    def __repr__(self) -> str:
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        return f"Column({', '.join(f'{name}={shown(value)}' for name, value in values)})"


@dataclass(frozen=True)
class Schema:
    """The columns of a table, key columns first and in key order.

    Attributes:
        columns: key columns, then the others in the user's order.
        key_ids: ids of the key columns, in key order; a prefix of `columns`.
        version: incremented by each alteration.
        next_column_id: id of the next column that is added.
    """

    columns: tuple[Column, ...]
    key_ids: tuple[ColumnId, ...]
    version: int = 0
    next_column_id: int = 0

    @cached_property
    def by_id(self) -> Mapping[ColumnId, Column]:
        """Columns by id."""
        return {c.id: c for c in self.columns}

    @cached_property
    def by_name(self) -> Mapping[str, Column]:
        """Columns by name."""
        return {c.name: c for c in self.columns}

    @property
    def key_columns(self) -> tuple[Column, ...]:
        """Key columns in key order."""
        return self.columns[: len(self.key_ids)]

    @property
    def value_columns(self) -> tuple[Column, ...]:
        """Columns that are not in the key."""
        return self.columns[len(self.key_ids) :]

    def column(self, name: str) -> Column:
        """Return a column by name.

        Raises:
            NotFound: an unknown column; the message lists the columns.
        """
        found = self.by_name.get(name)
        if found is None:
            raise NotFound(self.unknown(name))
        return found

    def unknown(self, name: str) -> str:
        """Return the message of an unknown column: the nearest name, and the columns."""
        folded = {n.casefold(): n for n in self.by_name}
        near = difflib.get_close_matches(name[:MAX_NAME_BYTES].casefold(), folded, 1)
        hint = f" did you mean {folded[near[0]]!r}?" if near else ""
        names = ", ".join(list(self.by_name)[:SHOWN_COLUMNS])
        return f"no column {name[:80]!r};{hint} the columns are: {names}"

    @cached_property
    def arrow(self) -> pa.Schema:
        """Arrow schema of all columns."""
        return arrow_schema(self.columns)


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the Arrow schema of some columns, in this order."""
    return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in columns])


def from_arrow(
    schema: pa.Schema,
    primary_key: Collection[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    immutable: Collection[str] = (),
) -> Schema:
    """Return the schema of a new table.

    Args:
        schema: names, types and nullability; key columns are never nullable.
        primary_key: names of the key columns, in key order; any type but bool, float and double.
        defaults: value by column name for new rows that do not set the column.
        immutable: names of columns that only the first write of a row sets.

    Raises:
        InvalidArgument: no key, an unknown or duplicate name, a type that is unsupported or not allowed in a
            key, a default that does not convert exactly.
    """
    if isinstance(primary_key, str):
        raise InvalidArgument(
            f"primary_key={primary_key!r}: a key is a list; pass [{primary_key!r}]"
        )
    names = schema.names
    _check_names(names, list(primary_key), [*(defaults or {}), *immutable])
    ordered = [*primary_key, *(n for n in names if n not in set(primary_key))]
    columns = []
    for number, name in enumerate(ordered):
        field = schema.field(name)
        stored = plain_type(field.type)
        check_stored(name, stored)
        in_key = number < len(primary_key)
        if in_key and stored in _NOT_KEYS:
            raise InvalidArgument(
                f"column {name!r} of type {stored} cannot be part of the primary key: bool, float and "
                "double do not identify rows reliably; choose another column, or cast it"
            )
        default = None
        if defaults and defaults.get(name) is not None:
            if in_key:
                raise InvalidArgument(
                    f"default of key column {name!r}: every row gives its key; omit the default"
                )
            default = default_scalar(name, defaults[name], stored)
        columns.append(
            Column(
                ColumnId(number),
                name,
                stored,
                field.nullable and not in_key,
                default,
                name in immutable,
            )
        )
    keys = tuple(c.id for c in columns[: len(primary_key)])
    return Schema(tuple(columns), keys, 0, len(columns))


def _check_names(names: list[str], keys: list[str], others: list[str]) -> None:
    if not keys:
        raise InvalidArgument(
            "a table needs a primary key, and none was given; pass primary_key=[column, ...]"
        )
    for many in (names, keys):
        for name in many:
            if many.count(name) > 1:
                raise InvalidArgument(f"column {name!r} is named twice; name each column once")
    for name in [*keys, *others]:
        if not isinstance(name, str):
            raise InvalidArgument(
                f"{name!r} is not a column name: names are str; pass {str(name)!r}"
            )
        if name not in names:
            raise InvalidArgument(f"no column {name!r}; the columns are: " + ", ".join(names))
    for name in names:
        check_column_name(name)
    if len(names) > MAX_COLUMNS:
        raise InvalidArgument(
            f"{len(names)} columns; a table has at most {MAX_COLUMNS}; split it into several tables"
        )


def check_stored(name: str, kind: pa.DataType) -> None:
    """Reject an unsupported type.

    Raises:
        InvalidArgument: an unsupported type.
    """
    try:
        type_name(kind)
    except InvalidArgument as err:
        raise InvalidArgument(f"column {name!r}: {err.message}") from err


def check_column_name(name: str) -> None:
    """Reject an invalid column name.

    Raises:
        InvalidArgument: empty, too long, reserved, or with unprintable characters.
    """
    if not name or name.startswith("_") or utf8_bytes(name) > MAX_NAME_BYTES:
        raise InvalidArgument(
            f"column name {name[:40]!r}: names are 1 to {MAX_NAME_BYTES} bytes and do not begin "
            "with '_', which marks nyala's own columns; choose another name"
        )
    if not name.isprintable():
        raise InvalidArgument(
            f"the column name {name[:40]!r} has unprintable characters; choose printable text"
        )


def utf8_bytes(text: str) -> int:
    """Return the length of a text in UTF-8 bytes.

    Raises:
        InvalidArgument: it has a lone surrogate.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError as err:
        raise InvalidArgument(
            f"{text[:40]!r} is not valid Unicode: {err}; remove the surrogate"
        ) from err


def default_scalar(name: str, value: Any, stored: pa.DataType) -> pa.Scalar:
    """Convert a default of a column to its stored type.

    Args:
        name: name of the column, for errors.
        value: the default; None: null.
        stored: Arrow type of the stored column.

    Raises:
        InvalidArgument: it does not convert exactly, or is too large.
    """
    made = scalar_of(value, stored, f"default {shown(value)} of column {name!r}")
    check_default(name, made)
    return made


def check_default(name: str, value: pa.Scalar) -> None:
    """Reject a default that is too large.

    Raises:
        InvalidArgument: it exceeds MAX_DEFAULT_BYTES.
    """
    if value.type not in (pa.string(), pa.binary()) or not value.is_valid:
        return
    if len(value.as_buffer()) > MAX_DEFAULT_BYTES:
        raise InvalidArgument(
            f"the default of column {name!r} has {len(value.as_buffer())} bytes; at most "
            f"{MAX_DEFAULT_BYTES} are allowed, because it is stored with the schema and read for "
            "older rows; use a shorter one"
        )
