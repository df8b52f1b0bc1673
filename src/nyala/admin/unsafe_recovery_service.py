"""Unsafe recovery: an operator lets a group that lost its majority continue with its survivors (S1.41)."""

import logging

from nyala.admin.fencing import OrderFence
from nyala.common.errors import InvalidArgument
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.replica.host import ReplicaHost
from nyala.replica.member.member import Member
from nyala.replica.replica import Replica
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)

LEADER_WAIT_TIMEOUTS = 4
"""Election timeouts to wait for a lost leader to be silent."""
MAX_TERM_STEP = 1_000_000
"""No group has had so many elections that its survivors have not heard of."""


class UnsafeRecoveryService:
    """Handler of `TabletAdmin` about lost majorities. On the loop only.

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
        """Return what this service answers."""
        return {methods.UNSAFE_CHANGE_CONFIG: self.unsafe_change_config}

    async def unsafe_change_config(
        self, request: pb.UnsafeChangeConfigRequest
    ) -> pb.UnsafeChangeConfigResponse:
        """Keep some members of the committed configuration only; in force, but not yet committed, on return.

        Raises:
            InvalidArgument: no such members, or the group has a leader and needs no rescue; or no person
                says so. Unavailable: the replica here has failed. NotFound: there is none.
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
            await standing.requests.clock.advance_past(standing.node.last_stamp)
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

    async def _wait_leaderless(self, replica: Replica) -> Member:
        """Wait until no leader is heard; one that led without a majority has stepped down by then."""
        step_ms = replica.context.options.election_timeout_ms
        for _ in range(LEADER_WAIT_TIMEOUTS):
            if not replica.running_member().node.view.hears_leader:
                break
            await self._env.tasks.sleep_ms(step_ms)
        member = replica.running_member()
        if member.node.view.hears_leader:
            raise InvalidArgument(
                f"the group of {replica.group} has a leader, {member.node.leader}, and needs no "
                "unsafe recovery; "
                "change its members with nyala tablet change_config"
            )
        return member
