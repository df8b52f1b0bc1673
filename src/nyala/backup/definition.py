"""Definition of a table in a backup: columns and partitions as JSON, and the definition at a time."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nyala.common.ids import ColumnId
from nyala.common.partitioning.partition import HashLevel, KeyRange, PartitionSchema
from nyala.common.schema import Column, Schema
from nyala.common.types import arrow_type, type_name
from nyala.wire import convert
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.values import value_from_ipc, value_to_ipc


@dataclass(frozen=True, slots=True)
class SavedDefinition:
    """Definition of a table, apart from its columns, at the end of an element.

    Attributes:
        partition: hash levels and ranges.
        dropped: ranges that were dropped, and the hybrid times at which each of their tablets was.
        replicas: of each tablet.
        options: of the table.
        comment: free text.
        owner: of the table.
    """

    partition: PartitionSchema
    dropped: tuple[tuple[KeyRange, int], ...]
    replicas: int
    options: Mapping[str, str]
    comment: str
    owner: str

    def partition_at(self, at: int) -> PartitionSchema:
        """Return the partitions at a time: ranges dropped later exist, and not those that replaced them.

        Args:
            at: hybrid time, at or before the end of the element.
        """
        then: list[KeyRange] = []
        for range_, ended in sorted(self.dropped, key=lambda d: d[1]):
            if ended > at and not any(_overlap(range_, r) for r in then):
                then.append(range_)
        now = [r for r in self.partition.ranges if not any(_overlap(r, d) for d in then)]
        ranges = sorted([*then, *now], key=lambda r: (r.lower is not None, r.lower or b""))
        return replace(self.partition, ranges=tuple(ranges))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "partition_version": self.partition.version,
            "hash": [
                {"column_ids": list(h.column_ids), "buckets": h.buckets, "seed": h.seed}
                for h in self.partition.hash
            ],
            "range_column_ids": list(self.partition.range_column_ids),
            "ranges": [_range_to_json(r) for r in self.partition.ranges],
            "dropped": [{**_range_to_json(r), "dropped_at": ended} for r, ended in self.dropped],
            "replicas": self.replicas,
            "options": dict(self.options),
            "comment": self.comment,
            "owner": self.owner,
        }

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> "SavedDefinition":
        """Return the definition of a JSON object; the inverse of `to_json`."""
        hashed = tuple(
            HashLevel(tuple(map(ColumnId, h["column_ids"])), h["buckets"], h["seed"])
            for h in fields["hash"]
        )
        partition = PartitionSchema(
            hashed,
            tuple(map(ColumnId, fields["range_column_ids"])),
            tuple(_range_from_json(r) for r in fields["ranges"]),
            fields["partition_version"],
        )
        dropped = tuple((_range_from_json(r), r["dropped_at"]) for r in fields["dropped"])
        return cls(
            partition, dropped, fields["replicas"], fields["options"], fields["comment"], fields["owner"]
        )  # fmt: skip


def _overlap(one: KeyRange, other: KeyRange) -> bool:
    return (one.upper is None or other.lower is None or other.lower < one.upper) and (
        other.upper is None or one.lower is None or one.lower < other.upper
    )


def _range_to_json(range_: KeyRange) -> dict[str, Any]:
    return {
        "lower": None if range_.lower is None else range_.lower.hex(),
        "upper": None if range_.upper is None else range_.upper.hex(),
    }


def _range_from_json(fields: dict[str, Any]) -> KeyRange:
    ends = (fields["lower"], fields["upper"])
    return KeyRange(*(None if end is None else bytes.fromhex(end) for end in ends))


def column_to_json(column: Column) -> dict[str, Any]:
    """Return a column as JSON; defaults are Arrow IPC in base64."""
    return {
        "id": column.id,
        "name": column.name,
        "type": type_name(column.type),
        "nullable": column.nullable,
        "immutable": column.immutable,
        "comment": column.comment,
        "default": base64.b64encode(value_to_ipc(column.default)).decode(),
        "read_default": base64.b64encode(value_to_ipc(column.read_default)).decode(),
    }


def column_from_json(fields: dict[str, Any]) -> Column:
    """Return the column of a JSON object; the inverse of `column_to_json`.

    Raises:
        InvalidArgument: an unknown type, or a default that is not one value of the type.
    """
    name, kind = fields["name"], arrow_type(fields["type"])
    default, read_default = (
        value_from_ipc(base64.b64decode(fields[n]), name, kind) for n in ("default", "read_default")
    )
    return Column(
        ColumnId(fields["id"]), name, kind, fields["nullable"], default, fields["immutable"],
        read_default, fields["comment"],
    )  # fmt: skip


def schema_to_json(schema: Schema) -> dict[str, Any]:
    """Return columns as JSON."""
    return {"key_ids": list(schema.key_ids), "columns": [column_to_json(c) for c in schema.columns]}


def schema_from_json(fields: dict[str, Any]) -> Schema:
    """Return the columns of a JSON object.

    Raises:
        InvalidArgument, KeyError, ValueError: it is not one of `schema_to_json`.
    """
    columns = tuple(column_from_json(c) for c in fields["columns"])
    return Schema(columns, tuple(fields["key_ids"]), 0, max(c.id for c in columns) + 1)


def table_spec(name: str, schema: Schema, definition: SavedDefinition, at: int) -> pb.TableSpec:
    """Return the definition of a new table as a table was at a time; its columns get new ids.

    Args:
        name: of the new table.
        schema: columns at the time.
        definition: of the element that contains the time.
        at: hybrid time.
    """
    ids = {c.id: ColumnId(number) for number, c in enumerate(schema.columns)}
    columns = tuple(replace(c, id=ids[c.id], read_default=None) for c in schema.columns)
    fresh = Schema(columns, tuple(ids[i] for i in schema.key_ids), 0, len(columns))
    then = definition.partition_at(at)
    partition = replace(
        then,
        hash=tuple(replace(h, column_ids=tuple(ids[i] for i in h.column_ids)) for h in then.hash),
        range_column_ids=tuple(ids[i] for i in then.range_column_ids),
    )
    return pb.TableSpec(
        name=name,
        schema=convert.schema_to_proto(fresh),
        partition=convert.partition_schema_to_proto(partition),
        replicas=definition.replicas,
        options=dict(definition.options),
        comment=definition.comment,
        owner=definition.owner,
    )
