"""The arguments of `Table.delete_where` and `Table.update_where`, checked before anything is sent."""

import threading
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypedDict

from nyala.client.caller import Caller
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.modify.modification import Modification, RowChange, parse_after
from nyala.client.modify.results import ChangeResult
from nyala.client.modify.values import Assignments
from nyala.client.read.read_spec import key_names
from nyala.client.transactions.staged_writes import part_of, stage_delete
from nyala.client.write.staging import StagingTarget
from nyala.client.write.watch import OnProgress, Watch
from nyala.common.errors import InvalidArgument
from nyala.common.expressions.predicate import Predicate
from nyala.common.expressions.where import parse
from nyala.common.hybrid_time import as_stamp
from nyala.common.schema import Schema
from nyala.wire.proto import nyala_pb2 as pb


class ModifyArguments(TypedDict, total=False):
    """Arguments of `Table.delete_where` and `Table.update_where`."""

    at: int | datetime | None
    after: str | None
    progress: bool | OnProgress
    stop: threading.Event | None


async def delete_rows(
    core: ClientCore,
    caller: Caller,
    table: OpenTable,
    where: str,
    txn: StagingTarget | None,
    how: ModifyArguments,
) -> ChangeResult | None:
    """Delete rows; raises and returns as `Table.delete_where`.

    Args:
        core: the client.
        caller: makes the call.
        table: the table.
        where: text of the predicate.
        txn: transaction in which the delete is staged, or a part of one; None: it takes effect.
        how: snapshot, position, progress, and the request to stop.
    """
    _check_names("delete_where", how)
    stage = part_of(core, txn)
    if stage is not None:
        _check_text(where)
        if given := [n for n, value in how.items() if value not in (None, False)]:
            raise InvalidArgument(
                f"a delete with txn= selects rows when the transaction commits, so {given[0]}= has no "
                "meaning; leave it out"
            )
        await caller.change(stage_delete(core, table, where, stage))
        return None
    watch = _watch(how, f"delete from {table.name}")
    selected = _predicate(where, table.schema)
    change = RowChange(pb.DELETE, "deleted", tuple(key_names(table.schema)), lambda rows: rows)
    return await _run(Modification(core, caller, table, selected, change, watch), how)


async def update_rows(
    core: ClientCore,
    caller: Caller,
    table: OpenTable,
    where: str,
    values: Mapping[str, Any],
    how: ModifyArguments,
) -> ChangeResult:
    """Update rows; raises as `Table.update_where`.

    Args:
        core: the client.
        caller: makes the call.
        table: the table.
        where: text of the predicate.
        values: new value by column.
        how: snapshot, position, progress, and the request to stop.
    """
    _check_names("update_where", how)
    watch = _watch(how, f"update {table.name}")
    selected = _predicate(where, table.schema)
    assigned = Assignments(table.schema, values)
    change = RowChange(pb.UPDATE, "updated", assigned.reads, assigned.apply)
    return await _run(Modification(core, caller, table, selected, change, watch), how)


def _check_names(call: str, how: ModifyArguments) -> None:
    for name in how:
        if name not in ModifyArguments.__annotations__:
            raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")


def _watch(how: ModifyArguments, label: str) -> Watch:
    return Watch(how.get("progress", False), how.get("stop"), label)


async def _run(work: Modification, how: ModifyArguments) -> ChangeResult:
    at, after = how.get("at"), how.get("after")
    if after and at is None:
        raise InvalidArgument("after= belongs to a snapshot; pass at= of the same result too")
    return await work.run(None if at is None else max(1, as_stamp(at)), parse_after(after))


def _predicate(where: Any, schema: Schema) -> Predicate:
    _check_text(where)
    return parse(where, schema)


def _check_text(where: Any) -> None:
    if not isinstance(where, str):
        raise InvalidArgument(
            f"where={where!r}: pass a condition as text, such as \"n < 5\"; 'true' selects every row"
        )
