"""Replacement of a tablet that got no leader, or lost all replicas, by an empty one. Pure.

The old tablet stays REPLACED with the id of its successor. Both are in one batch, so every key has exactly
one tablet at any time. A tablet that is replaced without an operator's order was never RUNNING in the
catalog, and clients never got its location: no acknowledged write is lost with it.
"""

from collections.abc import Sequence

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.master.catalog.actions import Action, DeleteTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet, TabletState
from nyala.master.ddl import create_table, dropped_ranges, kinds
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import CatalogOperation
from nyala.wire import convert
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb


def operation(table: TableId, tablets: Sequence[TabletId], inputs: PlanInputs) -> CatalogOperation:
    """Return the operation that replaces those of a table's tablets that are still CREATING then (S0.69).

    Args:
        table: id of the table.
        tablets: ids of the tablets to replace.
        inputs: live servers, limits and randomness.
    """
    return CatalogOperation(
        what="replace tablets",
        scope=lambda _: Scope(tables=(table,), tablets=tuple(tablets)),
        plan=lambda catalog: plan(catalog, table, tablets, inputs),
    )


def plan(
    catalog: Catalog, table_id: TableId, tablets: Sequence[TabletId], inputs: PlanInputs
) -> CatalogPlan:
    """Decide the replacement of tablets that did not get a leader.

    Args:
        catalog: the leader's catalog.
        table_id: id of the table.
        tablets: ids of the tablets to replace.
        inputs: live servers, limits and randomness.

    Raises:
        InvalidArgument: too few servers are live; nothing is changed.
    """
    table = catalog.table(table_id)
    stuck = [t for t in map(catalog.tablet, tablets) if t and t.state is TabletState.CREATING]
    if table is None or not stuck:
        return CatalogPlan()
    return _replaced(catalog, table, stuck, inputs)


def unsafe(
    request: pb.ReplaceTabletRequest, inputs: PlanInputs, shown: Sequence[ServerUuid], time: int
) -> CatalogOperation:
    """Return the operation that replaces one tablet in any state (S1.44).

    Args:
        request: request of an operator.
        inputs: live servers, limits and randomness.
        shown: live servers that report a working replica.
        time: a hybrid time that is not below any at which it had rows.
    """

    def scope(catalog: Catalog) -> Scope:
        tablet = catalog.tablet(TabletId(request.tablet_id))
        return Scope() if tablet is None else Scope(tables=(tablet.table_id,), tablets=(tablet.id,))

    return CatalogOperation(
        what="replace a lost tablet",
        scope=scope,
        plan=lambda catalog: unsafe_plan(catalog, request, inputs, shown, time),
    )


def unsafe_plan(
    catalog: Catalog,
    request: pb.ReplaceTabletRequest,
    inputs: PlanInputs,
    shown: Sequence[ServerUuid],
    time: int,
) -> CatalogPlan:
    """Decide what replacing one tablet writes; nothing when it is REPLACED already.

    A tablet of a dropped range gets no successor: it is deleted, and with it the table's earlier history.

    Args:
        catalog: the leader's catalog.
        request: names the tablet; `force` replaces it even with working replicas.
        inputs: live servers, limits and randomness.
        shown: servers whose replica works.
        time: hybrid time above every stamp of the tablet.

    Raises:
        NotFound: no such tablet, or it was deleted.
        InvalidArgument: it has working replicas, or is a whole journal, and `force` is not set; or too few
            servers are live.
    """
    tablet, table = known(catalog, request.tablet_id)
    if tablet.state is TabletState.REPLACED:
        return CatalogPlan(answer=table.id)
    if shown and not request.force:
        raise InvalidArgument(
            f"replicas of tablet {tablet.id} are on {', '.join(shown)}: recover it from them (nyala "
            f"tablet survivors {tablet.id}), or discard their rows with --force"
        )
    kinds.rules_of(table.spec.kind).check_loss(table, request)
    if tablet.dropped:
        return dropped_ranges.deletion_plan(catalog, tablet, tablet.record.dropped_at or time)
    return _replaced(catalog, table, [tablet], inputs, lost_by=time)


def known(catalog: Catalog, tablet_id: str) -> tuple[CatalogTablet, CatalogTable]:
    """Return a tablet that is live or REPLACED, and its table.

    Raises:
        NotFound: no such tablet, or it was deleted.
    """
    tablet = catalog.tablet(TabletId(tablet_id))
    table = None if tablet is None else catalog.table(tablet.table_id)
    if tablet is None or table is None or tablet.state is TabletState.DELETED:
        raise NotFound(
            f"no table has a tablet {tablet_id[:80]!r} (any more); see: nyala cluster ksck"
        )
    return tablet, table


def _replaced(
    catalog: Catalog,
    table: CatalogTable,
    old: Sequence[CatalogTablet],
    inputs: PlanInputs,
    lost_by: int | None = None,
) -> CatalogPlan:
    """Replace tablets; `lost_by`: a hybrid time above those of what is given up, None: nothing is."""
    placed = create_table.place_all(catalog, inputs, len(old), table.spec.replicas, table.id)
    replaced: list[cat.TabletRecord] = []
    new: list[cat.TabletRecord] = []
    for tablet, servers in zip(old, placed, strict=True):
        part = convert.partition_from_proto(tablet.record.partition)
        made = create_table.new_tablet(table.id, part, servers, inputs, table.version)
        made.attempt = tablet.record.attempt + 1 if lost_by is None else 0
        if lost_by is not None:
            made.floor = kinds.rules_of(table.spec.kind).floor(lost_by)
        if tablet.state is TabletState.CREATING:
            made.added_by, made.floor = tablet.record.added_by, tablet.record.floor
        record = tablet.edit()
        record.state, record.replaced_by = TabletState.REPLACED.value, made.id
        replaced.append(record)
        new.append(made)
    orders: list[Action] = [DeleteTabletAction(server, t.id) for t in old for server in t.holders]
    orders += create_table.create_orders(new)
    return CatalogPlan((*replaced, *new), actions=tuple(orders), answer=table.id)
