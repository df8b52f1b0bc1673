"""Unsafe recovery: an operator lets a group without a majority continue with its survivors (S1.41)."""

import logging

from nyala.admin.fencing import OrderFence
from nyala.common.errors import InvalidArgument
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.replica.host import ReplicaHost
from nyala.replica.member.member import ReplicaMember
from nyala.replica.replica import Replica
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

LEADER_WAIT_TIMEOUTS = 4
"""Number of election timeouts to wait until a former leader has stepped down."""
MAX_TERM_STEP = 1_000_000
"""Maximum step of the term in a request."""


class UnsafeRecoveryService:
    """Handler of `TabletAdmin.UnsafeChangeConfig`. Used on the event loop only.

    Args:
        env: time.
        host: owns the replicas.
        orders: checks the fence of each order.
    """

    def __init__(self, env: Env, host: ReplicaHost, orders: OrderFence) -> None:
        self._env = env
        self._host = host
        self._orders = orders

    def handlers(self) -> Handlers:
        """Return the handlers of this service."""
        return {methods.UNSAFE_CHANGE_CONFIG: self.unsafe_change_config}

    async def unsafe_change_config(
        self, request: pb.UnsafeChangeConfigRequest
    ) -> pb.UnsafeChangeConfigResponse:
        """Reduce the committed configuration to some members; active, but not yet committed, on return.

        Raises:
            InvalidArgument: unknown members, the group has a leader, or the order is not an operator's.
                Unavailable: the replica here has failed. NotFound: there is none.
        """
        if not request.cluster_id:
            raise InvalidArgument(
                "an unsafe recovery must be ordered by an operator; name the cluster in cluster_id"
            )
        self._orders.check(request)
        replica = self._host.get(TabletId(request.tablet_id))
        keep = [ServerUuid(u) for u in request.keep]
        active = replica.running_member().node.config
        changed = not active.lost or {m.uuid for m in active.members} != set(keep)
        last = replica.running_member().node.last
        if changed:
            standing = replica.running_member()
            await standing.admission.clock.advance_past(standing.node.last_stamp)
            member = await self._wait_leaderless(replica)
            if not 0 <= request.term <= member.node.term + MAX_TERM_STEP:
                raise InvalidArgument(
                    f"term {request.term} is too far from the group's term {member.node.term}; "
                    "read the group's state again"
                )
            last = member.node.last
            active = member.unsafe_change_config(keep, request.term)
            log.warning(
                "tablet %s continues with %s only: entries of other members after %s are lost",
                replica.group, ", ".join(keep), last,
            )  # fmt: skip
        return pb.UnsafeChangeConfigResponse(
            changed=changed,
            consensus=convert.consensus_to_proto(active, replica.status().term, None),
            last_term=last.term,
            last_index=last.index,
        )

    async def _wait_leaderless(self, replica: Replica) -> ReplicaMember:
        """Wait until there is no leader; one without a majority has stepped down by then."""
        step_ms = replica.context.options.election_timeout_ms
        for _ in range(LEADER_WAIT_TIMEOUTS):
            if not replica.running_member().node.view.has_live_leader:
                break
            await self._env.tasks.sleep_ms(step_ms)
        member = replica.running_member()
        if member.node.view.has_live_leader:
            raise InvalidArgument(
                f"the group of {replica.group} has a leader, {member.node.leader}, and needs no "
                "unsafe recovery; "
                "change its members with nyala tablet change_config"
            )
        return member
