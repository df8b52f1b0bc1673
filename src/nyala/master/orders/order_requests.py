"""Requests of orders: from an action to its message, from the catalog at the moment of sending. Pure."""

from typing import Any

from nyala.common.ids import ServerUuid
from nyala.env.rpc import Method
from nyala.master.catalog.actions import (
    Action,
    AlterTabletAction,
    CancelCopyAction,
    ChangeMembersAction,
    CopyAction,
    CreateTabletAction,
    DeleteTabletAction,
    WitnessAction,
)
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.group_state import Add, Modify
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.orders import reconcile
from nyala.master.tservers import WITNESS, TServers
from nyala.raft.reconfiguration.changes import ChangeKind
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

METHODS: dict[type[Action], Method] = {
    CreateTabletAction: methods.CREATE_TABLET,
    DeleteTabletAction: methods.DELETE_TABLET,
    AlterTabletAction: methods.ALTER_TABLET,
    ChangeMembersAction: methods.CHANGE_CONFIG,
    WitnessAction: methods.CREATE_WITNESS,
    CopyAction: methods.START_COPY,
    CancelCopyAction: methods.CANCEL_COPY,
}
"""Method that carries out an action, by the type of the action."""


def order(
    catalog: Catalog, servers: TServers, action: Action, fence: pb.Fence, timeout_ms: int
) -> tuple[Method, Any] | None:
    """Return the RPC of an action; None when the catalog no longer calls for it.

    Args:
        catalog: catalog of the leader.
        servers: their addresses.
        action: to carry out.
        fence: fence of the term in which this master leads.
        timeout_ms: timeout of the response.
    """
    assert not isinstance(action, WitnessAction), "its leader is asked first: see `witness_request`"
    request: Any
    if isinstance(action, CreateTabletAction):
        request = reconcile.create_request(catalog, action, fence)
    elif isinstance(action, AlterTabletAction):
        request = reconcile.alter_request(catalog, action, fence)
    elif isinstance(action, ChangeMembersAction):
        request = change_request(catalog, servers, action, fence, timeout_ms)
    elif isinstance(action, CopyAction):
        request = copy_request(catalog, servers, action, fence)
    elif isinstance(action, CancelCopyAction):
        request = cancel_request(catalog, action, fence)
    else:
        request = reconcile.delete_request(catalog, action, fence)
    return None if request is None else (METHODS[type(action)], request)


def is_wanted(catalog: Catalog, servers: TServers, action: Action) -> bool:
    """Return whether catalog and reports call for an action that failed, or whose answer was lost.

    Args:
        catalog: the leader's catalog.
        servers: the tablet servers known to this master, and what they report.
        action: that was sent.
    """
    tablet, server = catalog.tablet(action.tablet), servers.get(action.server)
    if tablet is None or server is None:
        return False
    leader, state = tablet.consensus.leader, server.replicas.get(tablet.id)
    if isinstance(action, CreateTabletAction):
        return action.server in tablet.awaited
    if isinstance(action, DeleteTabletAction):
        remains = state is not None or (tablet.gone and tablet.id in server.tombstones)
        return remains and not (tablet.live and action.server in tablet.members)
    if isinstance(action, AlterTabletAction):
        table = catalog.table(tablet.table_id)
        late = table is not None and server.versions.get(tablet.id, 0) < table.version
        return late and tablet.live and leader == action.server
    if isinstance(action, ChangeMembersAction):
        return tablet.live and tablet.config_id == action.config
    member = action.server in tablet.members
    if isinstance(action, CancelCopyAction):
        return not (tablet.live and member)
    source = action.source if isinstance(action, CopyAction) else action.leader
    return tablet.live and member and source == leader and state not in ("RUNNING", WITNESS)


def change_request(
    catalog: Catalog,
    servers: TServers,
    action: ChangeMembersAction,
    fence: pb.Fence,
    timeout_ms: int,
) -> pb.ChangeConfigRequest | None:
    """Return a change of members, with compare-and-set on the configuration of the decision.

    Args:
        catalog: the leader's catalog.
        servers: the tablet servers known to this master.
        action: the change of members.
        fence: catalog incarnation and term of this master.
        timeout_ms: deadline.
    """
    tablet = catalog.tablet(action.tablet)
    if tablet is None or not tablet.live or tablet.config_id != action.config:
        return None
    change = _change(tablet, servers, action)
    if change is None:
        return None
    return pb.ChangeConfigRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        config_term=action.config.term,
        config_index=action.config.index,
        changes=[change],
        timeout_ms=timeout_ms,
    )


def _change(
    tablet: CatalogTablet, servers: TServers, action: ChangeMembersAction
) -> pb.MemberChange | None:
    step = action.step
    if isinstance(step, Add):
        server = servers.get(step.server)
        if server is None:
            return None
        member = pb.Member(
            uuid=server.uuid,
            peer_address=server.registration.peer_address,
            address=server.registration.address,
            promote=not step.witness,
            electable=not step.witness,
        )
        return pb.MemberChange(kind=ChangeKind.ADD.value, member=member)
    if isinstance(step, Modify):
        member = pb.Member()
        member.CopyFrom(next(m for m in tablet.consensus.members if m.uuid == step.server))
        member.voter, member.promote = step.voter, step.promote
        member.replace, member.electable = step.replace, step.electable
        return pb.MemberChange(kind=ChangeKind.MODIFY.value, member=member)
    return pb.MemberChange(kind=ChangeKind.REMOVE.value, member=pb.Member(uuid=step.server))


def witness_request(
    action: WitnessAction, leader: pb.ListTabletsResponse, fence: pb.Fence
) -> pb.CreateWitnessRequest | None:
    """Return the order to create a log after the leader's last applied entry; None: not yet.

    Args:
        action: to carry out.
        leader: the leader's status of the tablet.
        fence: fence of the term in which this master leads.
    """
    for status in leader.tablets:
        consensus = status.report.consensus
        witnesses = [m for m in consensus.members if m.uuid == action.server and not m.electable]
        if witnesses and status.applied_index >= consensus.config_index:
            return pb.CreateWitnessRequest(
                destination_uuid=action.server,
                fence=fence,
                tablet_id=action.tablet,
                consensus=consensus,
                start_term=status.applied_term,
                start_index=status.applied_index,
                start_stamp=status.safe_time,
            )
    return None


def copy_request(
    catalog: Catalog, servers: TServers, action: CopyAction, fence: pb.Fence
) -> pb.StartCopyRequest | None:
    """Return the order to copy from a tablet's leader; None if the server is no longer a member.

    Args:
        catalog: the leader's catalog.
        servers: the tablet servers known to this master.
        action: the copy.
        fence: catalog incarnation and term of this master.
    """
    tablet, source = catalog.tablet(action.tablet), servers.get(action.source)
    if tablet is None or not tablet.live or action.server not in tablet.members or source is None:
        return None
    return pb.StartCopyRequest(
        destination_uuid=action.server,
        fence=fence,
        tablet_id=tablet.id,
        source_uuid=source.uuid,
        source_address=source.registration.address,
    )


def cancel_request(
    catalog: Catalog, action: CancelCopyAction, fence: pb.Fence
) -> pb.CancelCopyRequest | None:
    """Return the order to cancel a copy; None if the server is a member again.

    Args:
        catalog: the leader's catalog.
        action: the copy to cancel.
        fence: catalog incarnation and term of this master.
    """
    tablet = catalog.tablet(action.tablet)
    if tablet is not None and tablet.live and ServerUuid(action.server) in tablet.members:
        return None
    return pb.CancelCopyRequest(
        destination_uuid=action.server, fence=fence, tablet_id=action.tablet
    )
