"""Deletion of replicas; the vote is kept in a tombstone, unless the tablet is deleted for good."""

import logging

from nyala.admin.fencing import OrderFence
from nyala.common.errors import CasFailed, InvalidArgument, Unavailable
from nyala.common.ids import OpId, TabletId
from nyala.env.rpc import Handlers
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica
from nyala.replica.status import State
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


class DeletionService:
    """Handler of `TabletAdmin.DeleteTablet`. Used on the event loop only.

    Args:
        host: owns the replicas.
        orders: checks the fence of each order.
    """

    def __init__(self, host: ReplicaHost, orders: OrderFence) -> None:
        self._host = host
        self._orders = orders

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.DELETE_TABLET: self.delete_tablet}

    async def delete_tablet(self, request: pb.DeleteTabletRequest) -> pb.DeleteTabletResponse:
        """Delete a replica's data, but keep its vote; durable on return. No effect if there is no replica.

        `for_good`: the vote too, since the catalog has the tablet as deleted.

        Raises:
            InvalidArgument: `for_good` in an order of a tool, which does not know the catalog.
            CasFailed: `compare_config` is set, and this replica has a newer configuration.
        """
        self._orders.check(request)
        if request.for_good and request.cluster_id:
            raise InvalidArgument(
                "only the leader master deletes a replica for good; drop its table"
            )
        replica = self._host.find(TabletId(request.tablet_id))
        if replica is None or (replica.state is State.TOMBSTONED and not request.for_good):
            return pb.DeleteTabletResponse()
        if request.compare_config:
            self._compare(replica, OpId(request.config_term, request.config_index))
        log.info("deleting tablet %s: %s", request.tablet_id, request.reason)
        delete = self._host.delete_for_good if request.for_good else self._host.delete_replica
        await self._orders.run_to_completion(delete(TabletId(request.tablet_id)))
        return pb.DeleteTabletResponse()

    def _compare(self, replica: Replica, expected: OpId) -> None:
        """Reject the deletion of a replica that may be in a configuration that the sender does not know."""
        status = replica.status()
        known = max(status.committed_config.id, status.config.id)
        if known > expected:
            raise CasFailed(
                f"tablet {replica.group} has the configuration of {known} on this server, newer "
                f"than {expected}; read it again",
                {"expected": str(expected), "found": str(known)},
            )
        if self._host.copies.protected(replica.group):
            raise Unavailable(
                f"a copy of {replica.group} on this server is waiting to become a member; retry"
            )
