"""Orders about the masters' own group, by the same RPCs as for a tablet's group."""

from collections.abc import Callable

from nyala.admin import replica_report
from nyala.admin.deletion import DeletionService
from nyala.admin.fencing import Fence, OrderFence
from nyala.admin.members_service import MembersService
from nyala.common.errors import InvalidArgument
from nyala.common.ids import SYS_CATALOG, TabletId
from nyala.copying.service import copy_handlers
from nyala.datadir.identity import Identity
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.replica.host import ReplicaHost
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb


class GroupService:
    """Handlers of `TabletAdmin` and `CopyService` of a master. On the loop only.

    Args:
        env: calls and time.
        identity: identity of this master.
        host: owns its replica; raises Unavailable until it is open.
    """

    def __init__(self, env: Env, identity: Identity, host: Callable[[], ReplicaHost]) -> None:
        self._env = env
        self._identity = identity
        self._host = host
        self._orders = OrderFence(env, identity, Fence())  # no master orders another: operators do

    def handlers(self) -> Handlers:
        """Return what this service answers."""
        copies = copy_handlers(
            self._env, self._identity, lambda: self._host().copies, self._check_copy
        )
        return {
            **copies,
            methods.LIST_TABLETS: self.list_tablets,
            methods.CHANGE_CONFIG: self.change_config,
            methods.LEADER_STEP_DOWN: self.leader_step_down,
            methods.DELETE_TABLET: self.delete_tablet,
        }

    async def list_tablets(self, request: pb.ListTabletsRequest) -> pb.ListTabletsResponse:
        """Return the status of this master's replica.

        Raises:
            NotFound: it has none, or another one is named.
        """
        host = self._host()
        found = [host.get(TabletId(t)) for t in request.tablet_ids] or host.all()
        return pb.ListTabletsResponse(
            tablets=[replica_report.status(r) for r in found], problems=host.problems()
        )

    async def change_config(self, request: pb.ChangeConfigRequest) -> pb.ChangeConfigResponse:
        """Change the members of the masters' group; see `MembersService`."""
        if any(m.member.voter and not m.member.electable for m in request.changes):
            raise InvalidArgument("a master has the whole catalog: there are no witnesses of it")
        return await self._members().change_config(request)

    async def leader_step_down(
        self, request: pb.LeaderStepDownRequest
    ) -> pb.LeaderStepDownResponse:
        """Transfer leadership to another master; see `MembersService`."""
        return await self._members().leader_step_down(request)

    async def delete_tablet(self, request: pb.DeleteTabletRequest) -> pb.DeleteTabletResponse:
        """Delete the catalog of a master that was removed; see `DeletionService`."""
        return await DeletionService(self._host(), self._orders).delete_tablet(request)

    def _members(self) -> MembersService:
        return MembersService(self._env, self._host(), self._orders)

    def _check_copy(self, order: pb.StartCopyRequest | pb.CancelCopyRequest) -> None:
        """Check an order: a master has only the catalog; a new one takes any cluster's copy."""
        if order.tablet_id != SYS_CATALOG:
            raise InvalidArgument(f"a master has the catalog, and no replica of {order.tablet_id}")
        if self._identity.instance.cluster_id:
            self._orders.check(order)
        elif order.destination_uuid != self._identity.uuid:
            raise InvalidArgument(
                f"the order is for server {order.destination_uuid}; this is {self._identity.uuid}"
            )
