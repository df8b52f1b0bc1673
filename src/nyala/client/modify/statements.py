"""The arguments of `Table.delete_where` and `Table.update_where`, checked before anything is sent."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.connection import Connection
from nyala.client.modify.modification import Modification, RowChange, parse_after
from nyala.client.modify.results import ChangeResult
from nyala.client.modify.values import Assignments
from nyala.client.read.read_spec import key_names
from nyala.client.write.watch import Watch
from nyala.common.errors import InvalidArgument
from nyala.common.hybrid_time import as_stamp
from nyala.common.predicate import Predicate
from nyala.common.schema import Schema
from nyala.common.where import parse
from nyala.wire.proto import nyala_pb2 as pb


def delete_rows(
    connection: Connection, table: OpenTable, where: str,
    at: int | datetime | None, after: str | None, watch: Watch,
) -> ChangeResult:  # fmt: skip
    """Delete rows; raises as `Table.delete_where`.

    Args:
        connection: runs the requests.
        table: the table.
        where: text of the predicate.
        at: snapshot; None: now.
        after: position after which to begin; None: the beginning.
        watch: progress, and the request to stop.
    """
    selected = _predicate(where, table.schema)
    change = RowChange(pb.DELETE, "deleted", tuple(key_names(table.schema)), lambda rows: rows)
    return _run(Modification(connection, table, selected, change, watch), at, after)


def update_rows(
    connection: Connection, table: OpenTable, where: str, values: Mapping[str, Any],
    at: int | datetime | None, after: str | None, watch: Watch,
) -> ChangeResult:  # fmt: skip
    """Update rows; raises as `Table.update_where`.

    Args:
        connection: runs the requests.
        table: the table.
        where: text of the predicate.
        values: new value by column.
        at: snapshot; None: now.
        after: position after which to begin; None: the beginning.
        watch: progress, and the request to stop.
    """
    selected = _predicate(where, table.schema)
    assigned = Assignments(table.schema, values)
    change = RowChange(pb.UPDATE, "updated", assigned.reads, assigned.apply)
    return _run(Modification(connection, table, selected, change, watch), at, after)


def _run(work: Modification, at: int | datetime | None, after: str | None) -> ChangeResult:
    if after and at is None:
        raise InvalidArgument("after= belongs to a snapshot; pass at= of the same result too")
    return work.run(None if at is None else max(1, as_stamp(at)), parse_after(after))


def _predicate(where: Any, schema: Schema) -> Predicate:
    if not isinstance(where, str):
        raise InvalidArgument(
            f"where={where!r}: pass a condition as text, such as \"n < 5\"; 'true' selects every row"
        )
    return parse(where, schema)
