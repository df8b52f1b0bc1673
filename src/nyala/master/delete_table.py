"""Drop a table: request and catalog to plan. Pure."""

from nyala.common.ids import ServerUuid, TableId
from nyala.master.actions import Action, DeleteTabletAction
from nyala.master.catalog import Catalog
from nyala.master.operation import Operation
from nyala.master.plans import Plan, Scope
from nyala.master.records import TableState, TabletState, operation_key
from nyala.wire.proto import nyala_pb2 as pb


def operation(request: pb.DropTableRequest, now_us: int) -> Operation:
    """Return the operation that drops a table: the table REMOVED and its tablets DELETED in one batch.

    Args:
        request: the client's.
        now_us: microseconds since the epoch, for people.
    """
    return Operation(
        scope=lambda catalog: scope(catalog, request),
        plan=lambda catalog: plan(catalog, request, now_us),
    )


def scope(catalog: Catalog, request: pb.DropTableRequest) -> Scope:
    """Return the table's name, the table, and all of its tablets."""
    table = catalog.named(request.name)
    if table is None:
        return Scope(names=(request.name,))
    tablets = tuple(t.id for t in catalog.tablets_of(table.id))
    return Scope((request.name,), (table.id,), tablets)


def plan(catalog: Catalog, request: pb.DropTableRequest, now_us: int) -> Plan:
    """Decide what dropping a table writes and orders.

    Returns:
        A plan that writes nothing when this operation was executed already.

    Raises:
        NotFound: no such table.
    """
    done = executed(catalog, request.operation)
    if done is not None:
        return Plan(answer=done)
    table = catalog.require(request.name)
    removed = table.edit()
    removed.state = TableState.REMOVED.value
    removed.dropped_us = now_us
    removed.dropped_by.CopyFrom(request.operation)
    tablets = []
    actions: list[Action] = []
    for tablet in catalog.tablets_of(table.id):
        deleted = tablet.edit()
        deleted.state = TabletState.DELETED.value
        tablets.append(deleted)
        holders = dict.fromkeys((*tablet.members, *map(ServerUuid, tablet.record.reported_by)))
        actions += [DeleteTabletAction(server, tablet.id) for server in holders]
    return Plan(tuple(tablets), (removed,), actions=tuple(actions), answer=table.id)


def executed(catalog: Catalog, operation_id: pb.OperationId) -> TableId | None:
    """Return the table that this operation dropped already; None when it was not executed."""
    if not operation_id.client:
        return None
    return catalog.dropped_by(operation_key(operation_id))
