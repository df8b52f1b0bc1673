"""Orders that the catalog and the latest reports call for.

Pure, and level-triggered: derived each time. A lost order or response, a dead leader or an absent server
costs one interval, but no work is lost (S0.37, S0.53).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog import past_columns
from nyala.master.catalog.actions import (
    Action,
    AlterTabletAction,
    CreateTabletAction,
    DeleteTabletAction,
)
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet, TableState
from nyala.master.tservers import TServer
from nyala.wire.proto import nyala_pb2 as pb


def every_replica(server: TServer) -> Iterable[TabletId]:
    """Return all replicas that a server reported, with tombstones."""
    return [*server.replicas, *server.tombstones]


def orders_for(
    catalog: Catalog,
    servers: Sequence[TServer],
    replicas_to_check: Callable[[TServer], Iterable[TabletId]] = every_replica,
) -> list[Action]:
    """Return the orders for some tablet servers.

    A member of a live tablet's first configuration that has never reported its replica is to create it
    (members that join later get a copy). A replica of a deleted tablet is to be deleted, and a tombstone of
    one: it is for good, unlike that of a replica which was moved from its server. The leader of a
    tablet of an altered table is to apply the alteration until it reports the new version. A tablet without a
    catalog record is never touched (S0.46).

    Args:
        catalog: catalog of the leader.
        servers: live servers whose replicas are known from a full report in this term.
        replicas_to_check: returns the replicas of a server to check for deletion and for lost alterations.
    """
    actions: list[Action] = []
    by_uuid = {s.uuid: s for s in servers}
    for tablet in catalog.awaited():
        actions += [
            CreateTabletAction(uuid, tablet.id)
            for uuid in tablet.awaited
            if uuid in by_uuid and tablet.id not in by_uuid[uuid].replicas
        ]
    for table in catalog.altering():
        actions += _alterations(catalog, table, by_uuid)
    for server in servers:
        actions += _of_replicas(catalog, server, replicas_to_check(server))
    return actions


def after_report(catalog: Catalog, server: TServer, tablets: Sequence[TabletId]) -> list[Action]:
    """Return the orders that a server's report calls for; its other replicas are not checked.

    Creations are ordered when they are decided, and derived again each interval.

    Args:
        catalog: the leader's catalog.
        server: that reported.
        tablets: in its report.
    """
    tables = dict.fromkeys(t.table_id for t in map(catalog.tablet, tablets) if t is not None)
    here = [t for t in tablets if t in server.replicas or t in server.tombstones]
    actions = _of_replicas(catalog, server, here)
    for table in map(catalog.table, tables):
        if table is not None and table.state is TableState.ALTERING:
            actions += _alterations(catalog, table, {server.uuid: server})
    return actions


def _of_replicas(catalog: Catalog, server: TServer, replicas: Iterable[TabletId]) -> list[Action]:
    """Return the orders that some of a server's replicas call for.

    Replicas and tombstones of deleted tablets are to be deleted. A leader that has lost an alteration is to
    apply it.
    """
    actions: list[Action] = []
    for tablet in map(catalog.tablet, replicas):
        if tablet is not None and not tablet.live:
            actions.append(DeleteTabletAction(server.uuid, tablet.id))
        elif tablet is not None and _fell_back(catalog, server, tablet):
            actions.append(AlterTabletAction(server.uuid, tablet.id))
    return actions


def _fell_back(catalog: Catalog, server: TServer, tablet: CatalogTablet) -> bool:
    """Return whether a server's replica leads and lacks an alteration that was finished.

    After an unsafe change of configuration, a group may continue from a survivor that lacks it.
    """
    if tablet.id not in server.leader_reports or tablet.consensus.leader != server.uuid:
        return False
    table = catalog.table(tablet.table_id)
    if table is None or table.state is not TableState.RUNNING:
        return False
    return server.versions.get(tablet.id, 0) < table.version


def _alterations(
    catalog: Catalog, table: CatalogTable, by_uuid: Mapping[ServerUuid, TServer]
) -> list[Action]:
    """Return the orders to leaders that have not reported the table's schema version."""
    actions: list[Action] = []
    for tablet in catalog.tablets_of(table.id):
        leader = by_uuid.get(ServerUuid(tablet.consensus.leader))
        if leader is None or not tablet.runs:
            continue
        if leader.versions.get(tablet.id, 0) < table.version:
            actions.append(AlterTabletAction(leader.uuid, tablet.id))
    return actions


def create_request(
    catalog: Catalog, action: CreateTabletAction, fence: pb.Fence
) -> pb.CreateTabletRequest | None:
    """Return the request of an action; None if the catalog no longer calls for it.

    The replica starts with the definition at the start of the tablet's log. Later alterations are entries of
    the log, in order with the writes.

    Args:
        catalog: the leader's catalog.
        action: to send.
        fence: catalog incarnation and term of this master.
    """
    tablet = catalog.tablet(action.tablet)
    if tablet is None or action.server not in tablet.awaited:
        return None
    table = catalog.table(tablet.table_id)
    assert table is not None, f"tablet {tablet.id} has no table {tablet.table_id}"
    first = table.definition(tablet.record.first_schema_version)
    assert first is not None, f"tablet {tablet.id} begins with a schema that is not kept"
    return pb.CreateTabletRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        table_id=table.id,
        table_name=first.name,
        schema=first.schema,
        partition_schema=table.spec.partition,
        partition=tablet.record.partition,
        members=tablet.consensus.members,
        options=first.options,
        ranges_version=first.ranges_version,
        floor=tablet.record.floor,
        kind=table.spec.kind,
    )


def alter_request(
    catalog: Catalog, action: AlterTabletAction, fence: pb.Fence
) -> pb.AlterTabletRequest | None:
    """Return the request of an action; None if the tablet is deleted.

    Args:
        catalog: the leader's catalog.
        action: to send.
        fence: catalog incarnation and term of this master.
    """
    tablet = catalog.tablet(action.tablet)
    if tablet is None or not tablet.live:
        return None
    table = catalog.table(tablet.table_id)
    assert table is not None, f"tablet {tablet.id} has no table {tablet.table_id}"
    return pb.AlterTabletRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        table_name=table.name,
        schema=table.spec.schema,
        options=table.spec.options,
        ranges_version=table.spec.ranges_version,
        retire=tablet.dropped,
        above=past_columns.last_time(table.record),
    )


def delete_request(
    catalog: Catalog, action: DeleteTabletAction, fence: pb.Fence
) -> pb.DeleteTabletRequest | None:
    """Return the request of an action; None if the catalog needs the replica.

    A replica of a live tablet is deleted only if it has no newer configuration than the catalog (S0.44).

    Args:
        catalog: the leader's catalog.
        action: to send.
        fence: catalog incarnation and term of this master.
    """
    tablet = catalog.tablet(action.tablet)
    if tablet is None or (tablet.live and action.server in tablet.members):
        return None
    table = catalog.table(tablet.table_id)
    name = table.name if table is not None else tablet.table_id
    request = pb.DeleteTabletRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        reason=f"it does not belong to table {name} any more",
        for_good=tablet.gone,
    )
    if tablet.live:
        request.reason = f"the configuration of {tablet.config_id} does not name this server"
        request.compare_config = True
        request.config_term, request.config_index = tablet.config_id.term, tablet.config_id.index
    return request
