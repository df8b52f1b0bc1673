"""Configuration changes and leadership transfers, ordered by masters and operators.

A change names the committed configuration that it was based on. It is rejected before it is logged if it
could not be committed, or would make a voter of a member that lacks committed entries: a logged change cannot
be withdrawn.
"""

from collections.abc import Sequence

from nyala.admin.fencing import OrderFence
from nyala.common.errors import InvalidArgument, Unavailable
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.raft.membership import Configuration
from nyala.raft.quorum import majority
from nyala.raft.reconfiguration.changes import Change, ChangeKind, edited
from nyala.replica.host import ReplicaHost
from nyala.replica.replica import Replica, is_witness
from nyala.replica.state_machine import FlushPoint
from nyala.replica.status import ReplicaStatus, State
from nyala.wire import convert, methods
from nyala.wire.proto import nyala_pb2 as pb

TIMEOUT_MS = 10_000
MAX_TIMEOUT_MS = 60_000
POLL_MS = 20
CAUGHT_UP_ENTRIES = 1_000
"""Maximum number of missing entries with which a member counts as caught up."""


class MembersService:
    """Handlers of `TabletAdmin` for configuration changes. Used on the event loop only.

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
        return {
            methods.CHANGE_CONFIG: self.change_config,
            methods.LEADER_STEP_DOWN: self.leader_step_down,
            methods.CREATE_WITNESS: self.create_witness,
        }

    async def change_config(self, request: pb.ChangeConfigRequest) -> pb.ChangeConfigResponse:
        """Change the configuration; the new one is committed on return.

        Raises:
            NotLeader: with the leader's address; STEPPING_DOWN if it was to remove itself.
            CasFailed: the configuration has changed. InvalidArgument: an invalid change.
            Unavailable: a change is pending, a new voter has not caught up, or too few voters reply for it to
                be committed.
            OutcomeUnknown: leadership was lost, or the deadline passed, while it was in flight.
        """
        self._orders.check(request)
        replica = self._host.get(TabletId(request.tablet_id))
        changes = [_change(c) for c in request.changes]
        expected = OpId(request.config_term, request.config_index)
        if replica.is_leader:
            await self._check(replica, changes, expected)
        changed = await replica.change_config(changes, expected, _timeout(request.timeout_ms))
        status = replica.status()
        return pb.ChangeConfigResponse(
            consensus=convert.consensus_to_proto(changed, status.term, status.leader)
        )

    async def _check(self, replica: Replica, changes: Sequence[Change], expected: OpId) -> None:
        """Reject a change that could not be committed, or that would block the group's writes.

        The voters needed for the commit have to reply now: one that has just died replied a moment ago.
        """
        status = replica.status()
        if status.config.id != expected or status.committed_config.id != expected:
            return  # Raft rejects it
        after = edited(status.config, changes)
        _check_caught_up(status, after)
        number = replica.running_member().node.read_index()
        replica.context.schedule(replica.group)
        while replica.is_leader and not _answered(replica, after, number or 0):
            await self._env.tasks.sleep_ms(POLL_MS)

    async def leader_step_down(
        self, request: pb.LeaderStepDownRequest
    ) -> pb.LeaderStepDownResponse:
        """Transfer leadership; on return another member leads, or the named one led already.

        Raises:
            NotLeader: with the leader's address. InvalidArgument: the named member cannot lead.
            Unavailable: the successor did not become leader within an election timeout; this one still leads.
        """
        self._orders.check(request)
        replica = self._host.get(TabletId(request.tablet_id))
        to = ServerUuid(request.successor)
        leader = replica.status().leader
        if not to or to != leader:
            to = replica.transfer(to or None)
            await self._until_handed_over(replica, to, _timeout(request.timeout_ms))
        status = replica.status()
        return pb.LeaderStepDownResponse(leader=status.leader or "", term=status.term)

    async def _until_handed_over(self, replica: Replica, to: ServerUuid, timeout_ms: int) -> None:
        end_us = self._env.clock.monotonic_us() + timeout_ms * 1000
        while (node := replica.running_member().node).leader in (None, node.uuid):
            transfer_ended = node.is_leader and node.status().transferee is None
            if transfer_ended or self._env.clock.monotonic_us() >= end_us:
                raise Unavailable(
                    f"{to} did not become leader of {replica.group} in time, because it is unreachable "
                    "or far behind; retry, or name another voter"
                )
            await self._env.tasks.sleep_ms(POLL_MS)

    async def create_witness(self, request: pb.CreateWitnessRequest) -> pb.CreateWitnessResponse:
        """Create a replica with a log and without data; durable on return. Idempotent.

        Raises:
            InvalidArgument: this server is not a witness in the configuration, which may also begin after the
                log.
            AlreadyPresent: the tablet has another replica here, or had one (tombstone).
        """
        self._orders.check(request)
        group = TabletId(request.tablet_id)
        replica = self._host.find(group)
        if replica is not None and replica.state is not State.TOMBSTONED:
            replica.running_member()  # raises unless it runs
            if is_witness(replica):
                return pb.CreateWitnessResponse()
        config = convert.configuration_from_proto(request.consensus)
        start = FlushPoint(OpId(request.start_term, request.start_index), request.start_stamp)
        await self._orders.run_to_completion(self._host.create_witness(group, config, start))
        return pb.CreateWitnessResponse()


def _timeout(asked_ms: int) -> int:
    return min(asked_ms or TIMEOUT_MS, MAX_TIMEOUT_MS)


def _change(message: pb.MemberChange) -> Change:
    try:
        kind = ChangeKind(message.kind)
    except ValueError:
        kinds = ", ".join(k.value for k in ChangeKind)
        raise InvalidArgument(
            f"the kind of a configuration change is one of {kinds}, not {message.kind[:40]!r}"
        ) from None
    member = convert.member_from_proto(message.member)
    if kind is not ChangeKind.REMOVE and not member.peer_address:
        raise InvalidArgument(f"the member {member.uuid[:40]!r} needs a peer address")
    return Change(kind, member)


def _check_caught_up(status: ReplicaStatus, after: Configuration) -> None:
    near = {
        p.uuid for p in status.peers if p.match and p.match + CAUGHT_UP_ENTRIES >= status.commit
    }
    coming = [u for u in after.voters if u not in status.config.voters and u not in near]
    if coming:
        raise Unavailable(
            f"{coming[0]} has not caught up: it lacks entries up to {status.commit}, and writes would wait "
            "for it. Add it as a non-voter with promote set: the leader makes it a voter once it has them"
        )


def _answered(replica: Replica, after: Configuration, number: int) -> bool:
    """Return whether a majority of the voters after the change has replied to a round; False: not yet.

    Raises:
        Unavailable: too few have replied within an election timeout.
    """
    options, required = replica.context.options, majority(len(after.voters))
    answered = replica.running_member().node.view.answered_since(number)
    if sum(u in after.voters for u in answered) >= required:
        return True
    silent = options.election_timeout_ms // options.raft_tick_ms
    peers = replica.status().peers
    responsive = {p.uuid for p in peers if p.ticks_silent <= silent} | {replica.context.uuid}
    answering = [u for u in after.voters if u in responsive]
    if len(answering) < required:
        raise Unavailable(
            f"only {len(answering)} of the {len(after.voters)} voters after the change respond, and "
            f"{required} are needed, so neither the change nor a write could be committed; restart or "
            "replace the others"
        )
    return False
