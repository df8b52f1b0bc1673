"""Which orders the catalog and the latest reports call for.

Pure, and level-triggered: derived anew each time. A lost order or answer, a dead leader, a server that
was away: each costs one interval, never the work (style rule 10, S0.37, S0.53).
"""

from collections.abc import Sequence

from nyala.common.ids import NO_OP
from nyala.master.actions import Action, CreateTabletAction, DeleteTabletAction
from nyala.master.catalog import Catalog
from nyala.master.records import Tablet
from nyala.master.tservers import TServer
from nyala.wire.proto import nyala_pb2 as pb


def needed(catalog: Catalog, servers: Sequence[TServer]) -> list[Action]:
    """Return the orders that some tablet servers should get.

    A member of a live tablet's first configuration that has never shown its replica is to create it
    (members that join later are given a copy instead); a replica of a tablet that
    the catalog records as deleted is to be deleted. A tablet without a record is never touched (S0.46).

    Args:
        catalog: of the leader.
        servers: live servers whose replicas are known from a full report in this term.
    """
    actions: list[Action] = []
    by_uuid = {s.uuid: s for s in servers}
    for tablet in catalog.tablets():
        if tablet.live and tablet.config_id == NO_OP and _missing(tablet):
            actions += [
                CreateTabletAction(uuid, tablet.id)
                for uuid in tablet.members
                if uuid in by_uuid and _lacks(tablet, by_uuid[uuid])
            ]
    for server in servers:
        for tablet_id in server.replicas:
            known = catalog.tablet(tablet_id)
            if known is not None and not known.live:
                actions.append(DeleteTabletAction(server.uuid, tablet_id))
    return actions


def _missing(tablet: Tablet) -> bool:
    return len(tablet.record.reported_by) < len(tablet.members)


def _lacks(tablet: Tablet, server: TServer) -> bool:
    """Whether a member never had its replica.

    One that had it and lost it is no longer the voter it was: making it a new, empty replica could
    elect a leader without acknowledged entries. Such a replica is replaced, not re-created.
    """
    return server.uuid not in tablet.record.reported_by and tablet.id not in server.replicas


def create_request(
    catalog: Catalog, action: CreateTabletAction, fence: pb.Fence
) -> pb.CreateTabletRequest | None:
    """Return the order that carries an action out; None when the catalog no longer wants it."""
    tablet = catalog.tablet(action.tablet)
    if tablet is None or not tablet.live or action.server not in tablet.members:
        return None
    table = catalog.table(tablet.table_id)
    assert table is not None, f"tablet {tablet.id} has no table {tablet.table_id}"
    return pb.CreateTabletRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        table_id=table.id,
        table_name=table.name,
        schema=table.spec.schema,
        partition_schema=table.spec.partition,
        partition=tablet.record.partition,
        members=tablet.consensus.members,
        options=table.spec.options,
    )


def delete_request(
    catalog: Catalog, action: DeleteTabletAction, fence: pb.Fence
) -> pb.DeleteTabletRequest | None:
    """Return the order that carries an action out; None when the catalog does not record a deletion."""
    tablet = catalog.tablet(action.tablet)
    if tablet is None or tablet.live:
        return None
    table = catalog.table(tablet.table_id)
    name = table.name if table is not None else tablet.table_id
    return pb.DeleteTabletRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        reason=f"table {name} was dropped",
    )
