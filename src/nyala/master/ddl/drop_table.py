"""Drop a table, at once or with a time in which it can be recalled: request and catalog to plan. Pure.

A table that can be recalled is REMOVED neither in its record nor in those of its tablets, so no order to
delete a replica can be derived from them: a tablet that the catalog calls DELETED never comes back (S0.43).
"""

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.ids import TableId
from nyala.master.catalog.actions import Action, DeleteTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTable, TableState, TabletState, operation_key
from nyala.master.ddl import kinds
from nyala.master.ddl.alter_table import remember
from nyala.master.ddl.operation import CatalogOperation
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

MAX_RESERVE_S = 10 * 366 * 86_400


def operation(request: pb.DropTableRequest, now_us: int) -> CatalogOperation:
    """Return the operation that drops a table: REMOVED with its tablets DELETED in one batch, or hidden.

    Args:
        request: the client's.
        now_us: microseconds since the epoch.
    """
    return CatalogOperation(
        what="drop table",
        scope=lambda catalog: scope(catalog, request),
        plan=lambda catalog: plan(catalog, request, now_us),
    )


def purge(table: CatalogTable, now_us: int) -> CatalogOperation:
    """Return the operation that ends the time in which a dropped table could be recalled."""

    def decide(catalog: Catalog) -> CatalogPlan:
        now = catalog.table(table.id)
        if now is None or not now.recallable or now.record.purge_after_us > now_us:
            return CatalogPlan()
        return _remove(catalog, now, now.edit())

    return CatalogOperation("purge table", lambda catalog: _scope_of(catalog, table), decide)


def scope(catalog: Catalog, request: pb.DropTableRequest) -> Scope:
    """Return the table's name, the table, and all of its tablets."""
    table = _named_table(catalog, request)
    return Scope(names=(request.name,)) if table is None else _scope_of(catalog, table)


def _scope_of(catalog: Catalog, table: CatalogTable) -> Scope:
    tablets = tuple(t.id for t in catalog.tablets_of(table.id))
    return Scope((table.name,), (table.id,), tablets)


def plan(catalog: Catalog, request: pb.DropTableRequest, now_us: int) -> CatalogPlan:
    """Decide what dropping a table writes and orders.

    Args:
        catalog: the leader's catalog.
        request: request of the client.
        now_us: wall clock, microseconds since the epoch.

    Returns:
        A plan that writes nothing when this operation was executed already.

    Raises:
        NotFound: no such table.
        InvalidArgument: both or neither of name and id, a time that is too long, or one for a table that
            was dropped already; or it is of another kind.
    """
    done = executed(catalog, request.operation)
    if done is not None:
        return CatalogPlan(answer=done)
    kind = kinds.rules_of(request.kind).machine
    if bool(request.name) == bool(request.id):
        raise InvalidArgument(
            f"a {kind.name} is named once; give its name or its id, one of the two"
        )
    if request.reserve_seconds > MAX_RESERVE_S:
        raise InvalidArgument(
            f"reserve_seconds={request.reserve_seconds}; at most {MAX_RESERVE_S} can be waited for; "
            "give a smaller number"
        )
    table = _named_table(catalog, request)
    if table is None:
        table = catalog.require(request.name, kind) if request.name else None
    if table is None or not (table.live or table.recallable):
        raise NotFound(
            f"no {kind.name} has the id {request.id[:80]!r}, or it was deleted permanently; "
            f"see: nyala {kind.name} list, nyala {kind.name} list --dropped"
        )
    kinds.check_kind(table, request.kind, drop=True)
    removed = table.edit()
    if removed.dropped_by.client:  # of a drop that was recalled
        remember(removed, table.record.dropped_by)
    removed.dropped_us = now_us
    removed.dropped_by.CopyFrom(request.operation)
    if not request.reserve_seconds:
        return _remove(catalog, table, removed)
    if table.recallable:
        raise InvalidArgument(
            f"the {kind.name} {table.name!r} (id {table.id}) was dropped already; recall it, or drop it with "
            "reserve_seconds=0 to delete it now"
        )
    removed.purge_after_us = now_us + request.reserve_seconds * 1_000_000
    return CatalogPlan(tables=(removed,), answer=table.id)


def _named_table(catalog: Catalog, request: pb.DropTableRequest) -> CatalogTable | None:
    return catalog.named(request.name) if request.name else catalog.table(TableId(request.id))


def _remove(catalog: Catalog, table: CatalogTable, removed: cat.TableRecord) -> CatalogPlan:
    removed.state = TableState.REMOVED.value
    removed.purge_after_us = 0
    tablets = []
    actions: list[Action] = []
    for tablet in catalog.tablets_of(table.id):
        deleted = tablet.edit()
        deleted.state = TabletState.DELETED.value
        tablets.append(deleted)
        actions += [DeleteTabletAction(server, tablet.id) for server in tablet.holders]
    return CatalogPlan(tuple(tablets), (removed,), actions=tuple(actions), answer=table.id)


def executed(catalog: Catalog, operation_id: pb.OperationId) -> TableId | None:
    """Return the table that this operation dropped already; None when it was not executed."""
    if not operation_id.client:
        return None
    key = operation_key(operation_id)
    return catalog.dropped_by(key) or catalog.altered_by(key)
