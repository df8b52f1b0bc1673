"""A schema as a tablet stores it: in its manifest, and in the operation that replicates a new one.

Rules: what is decoded is checked as a whole; docs/internals/formats-tablet.md shows the fields.
"""

import msgspec
import pyarrow as pa

from nyala.common.alteration import check_schema
from nyala.common.errors import Corrupt, InvalidArgument
from nyala.common.ids import ColumnId
from nyala.common.schema import Column, Schema
from nyala.common.types import arrow_type, type_name


class StoredColumn(msgspec.Struct, frozen=True):
    """One column; defaults as an IPC stream of one row and one column."""

    id: int
    name: str
    type: str
    nullable: bool
    default: bytes | None
    immutable: bool
    read_default: bytes | None
    comment: str


class StoredSchema(msgspec.Struct, frozen=True):
    """A schema."""

    columns: list[StoredColumn]
    key_ids: list[int]
    version: int
    next_column_id: int


def store(schema: Schema) -> StoredSchema:
    """Return a schema as it is stored."""
    columns = [store_column(c) for c in schema.columns]
    return StoredSchema(columns, list(schema.key_ids), schema.version, schema.next_column_id)


def store_column(column: Column) -> StoredColumn:
    """Return a column as it is stored."""
    return StoredColumn(
        column.id, column.name, type_name(column.type), column.nullable, _pack(column.default),
        column.immutable, _pack(column.read_default), column.comment,
    )  # fmt: skip


def load(stored: StoredSchema) -> Schema:
    """Return the schema that was stored; the inverse of `store`.

    Raises:
        Corrupt: it is not a valid schema.
    """
    try:
        columns = tuple(_column(c) for c in stored.columns)
        keys = tuple(ColumnId(i) for i in stored.key_ids)
        schema = Schema(columns, keys, stored.version, stored.next_column_id)
        check_schema(schema)
    except (pa.ArrowException, InvalidArgument, OSError, ValueError, IndexError) as err:
        raise Corrupt(f"a stored schema of version {stored.version} is not valid: {err}") from err
    return schema


def load_column(stored: StoredColumn) -> Column:
    """Return the column that was stored; the inverse of `store_column`.

    Raises:
        Corrupt: it has an unknown type, or a default that does not decode.
    """
    try:
        return _column(stored)
    except (pa.ArrowException, InvalidArgument, OSError, ValueError, IndexError) as err:
        raise Corrupt(f"a stored column {stored.name[:80]!r} is not valid: {err}") from err


def _column(stored: StoredColumn) -> Column:
    return Column(
        ColumnId(stored.id),
        stored.name,
        arrow_type(stored.type),
        stored.nullable,
        _unpack(stored.default),
        stored.immutable,
        _unpack(stored.read_default),
        stored.comment,
    )


def _pack(value: pa.Scalar | None) -> bytes | None:
    if value is None:
        return None
    array = pa.nulls(1, value.type) if not value.is_valid else pa.repeat(value, 1)
    batch = pa.RecordBatch.from_arrays([array], names=["v"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    made: bytes = sink.getvalue().to_pybytes()
    return made


def _unpack(stored: bytes | None) -> pa.Scalar | None:
    if stored is None:
        return None
    table = pa.ipc.open_stream(stored).read_all()
    table.validate(full=True)
    if table.shape != (1, 1):
        raise ValueError(f"a default of {table.shape} values")
    return table.column(0)[0]
