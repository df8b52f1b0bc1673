"""Dropped columns of a tablet, whose values are kept while a time before the drop can be read.

The manifest has their definitions; docs/internals/formats-tablet.md shows the bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import pyarrow as pa

from nyala.common.errors import Corrupt
from nyala.common.schema import Column, Schema
from nyala.tablet.files import stored_schema
from nyala.tablet.files.stored_schema import StoredColumn


@dataclass(frozen=True, slots=True)
class DroppedColumn:
    """One dropped column.

    Attributes:
        column: its last definition. It always has a read default, null if it had none: rows without the
            column are older than it, or were written after the drop and are visible at no time before it.
        stamp: hybrid time of the drop; the column exists below it.
    """

    column: Column
    stamp: int


def dropped_by(old: Schema, new: Schema, stamp: int) -> tuple[DroppedColumn, ...]:
    """Return the columns that an alteration drops.

    Args:
        old: schema before it.
        new: schema after it.
        stamp: timestamp of its entry.
    """
    gone = [c for c in old.columns if c.id not in new.by_id]
    return tuple(DroppedColumn(with_read_default(c), stamp) for c in gone)


def with_read_default(column: Column) -> Column:
    """Return a column that rows may lack: with a read default, null if it has none."""
    if column.read_default is not None:
        return column
    return replace(column, read_default=pa.scalar(None, column.type))


def readable(dropped: Sequence[DroppedColumn], horizon: int) -> tuple[DroppedColumn, ...]:
    """Return those that can be read at some time that is not below a horizon."""
    return tuple(d for d in dropped if d.stamp > horizon)


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    column: StoredColumn
    stamp: int


def pack(dropped: Sequence[DroppedColumn]) -> bytes:
    """Return dropped columns as the manifest has them."""
    return msgspec.msgpack.encode(
        [_Stored(stored_schema.store_column(d.column), d.stamp) for d in dropped]
    )


def unpack(data: bytes | memoryview) -> tuple[DroppedColumn, ...]:
    """Return the dropped columns of a manifest; the inverse of `pack`.

    Raises:
        Corrupt: they do not decode.
    """
    try:
        stored = msgspec.msgpack.decode(data, type=list[_Stored])
    except msgspec.MsgspecError as err:
        raise Corrupt(f"the dropped columns of a tablet do not decode: {err}") from err
    found = [DroppedColumn(stored_schema.load_column(s.column), s.stamp) for s in stored]
    if any(d.column.read_default is None for d in found):
        raise Corrupt("a dropped column of a tablet has no read default")
    return tuple(found)
