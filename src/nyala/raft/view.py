"""Properties of a node that its host reads often, and its full status; read-only."""

from nyala.common.ids import OpId, ServerUuid
from nyala.raft.messages import HardState
from nyala.raft.progress import Progress
from nyala.raft.roles import leader, quiescence
from nyala.raft.state import RaftCore
from nyala.raft.status import PeerStatus, Status


class NodeView:
    """Read-only view of a node's state; made by `RaftNode`.

    Args:
        core: Raft state of the node.
    """

    def __init__(self, core: RaftCore) -> None:
        self._core = core

    # ---- log and hard state ------------------------------------------------------------------------

    @property
    def hard_state(self) -> HardState:
        """Current term and vote."""
        return self._core.hard

    @property
    def acknowledged(self) -> OpId:
        """Op id of the last entry that this member ever acknowledged, even if its log has lost it."""
        return max(self._core.log.last, self._core.lost_last)

    @property
    def committed(self) -> OpId:
        """Op id of the last entry known to be committed."""
        return self._core.log.op_id(self._core.log.committed)

    @property
    def durable_index(self) -> int:
        """Last index that is durable here."""
        return self._core.log.stable

    @property
    def log_bytes(self) -> int:
        """Memory of cached entries, in bytes."""
        return self._core.log.memory_bytes

    @property
    def reads_from_disk(self) -> bool:
        """True if committed entries have to be read from the log before they are applied."""
        return self._core.log.reads_from_disk

    def holds(self, op: OpId) -> bool:
        """Return whether the log has this entry."""
        return self._core.log.holds(op)

    @property
    def heartbeat_due(self) -> bool:
        """True if this leader's next tick sends heartbeats."""
        lead, least = self._core.leadership, self._core.options.heartbeat_ticks
        return lead is not None and lead.heartbeat_elapsed + 1 >= least

    @property
    def idle_ticks(self) -> int:
        """Number of ticks that may be processed together; 1: something may be due at the next.

        They end with a leader's heartbeat, and before an election of another member.
        """
        core, lead = self._core, self._core.leadership
        if lead is None:
            return max(1, max(core.timeout - core.elapsed, core.promise_ticks) - 1)
        if lead.rounds or lead.transfer is not None or lead.removed or lead.catch_ups:
            return 1
        return max(1, core.options.heartbeat_ticks - lead.heartbeat_elapsed)

    @property
    def retain_index(self) -> int:
        """Lowest index that some member may still have to be sent; 0: unknown."""
        core = self._core
        return core.log.base.index + 1 if self.keeps_log else leader.retain_index(core)

    @property
    def keeps_log(self) -> bool:
        """True if the whole log is retained, for a witness that will receive the data (S1.53)."""
        me = self._core.configs.active.get(self._core.uuid)
        return me is not None and me.promote and me.voter and not me.electable

    # ---- leadership ------------------------------------------------------------------------------

    @property
    def has_live_leader(self) -> bool:
        """True if a leader's message came within the minimum election timeout (dissertation 4.2.3)."""
        return self._core.has_live_leader

    @property
    def closed_pending(self) -> int:
        """A follower's closed time that becomes valid once more entries are applied; 0: none."""
        pending = self._core.closed_pending
        return 0 if pending is None else pending[0]

    @property
    def transferring(self) -> bool:
        """True if this leader is transferring leadership."""
        lead = self._core.leadership
        return lead is not None and lead.transfer is not None

    def answered_since(self, number: int) -> tuple[ServerUuid, ...]:
        """Return the members that have replied to a read-index round or a later one, this leader included."""
        lead = self._core.leadership
        peers = () if lead is None else lead.peers.items()
        return (self._core.uuid, *(u for u, p in peers if p.round >= number))

    def matches(self) -> dict[ServerUuid, int]:
        """Return the match index of each peer of this leader; empty when it does not lead."""
        lead = self._core.leadership
        return {} if lead is None else {u: p.match for u, p in lead.peers.items()}

    def successors(self) -> dict[ServerUuid, int]:
        """Return those of `matches` that may lead next: they reply, and have all committed entries."""
        core, lead = self._core, self._core.leadership
        since = core.ticks - core.options.election_ticks
        able = {} if lead is None else lead.peers
        return {
            u: p.match
            for u, p in able.items()
            if core.configs.active.may_lead(u)
            and p.last_reply_at >= since
            and p.match >= core.log.committed
        }

    def failure_sources(self) -> tuple[ServerUuid, ...]:
        """Return the servers on which this node relies while it is quiesced."""
        return quiescence.failure_sources(self._core)

    def status(self) -> Status:
        """Return the full status; costs more than the properties."""
        return _status(self._core)


def _status(core: RaftCore) -> Status:
    log, lead = core.log, core.leadership
    return Status(
        uuid=core.uuid,
        role=core.role,
        term=core.term,
        vote=core.hard.vote,
        leader=core.leader,
        commit=log.committed,
        applied=log.applied,
        durable=log.stable,
        last=log.last,
        config=core.configs.active,
        committed_config=core.configs.committed,
        accepting=lead is not None and log.applied >= lead.first and lead.transfer is None,
        transferee=None if lead is None or lead.transfer is None else lead.transfer.to,
        closed=core.closed,
        known_commit=max(core.known_commit, log.committed),
        quiesced=core.quiesced,
        peers=() if lead is None else tuple(_peer(core, u, p) for u, p in lead.peers.items()),
    )


def _peer(core: RaftCore, uuid: ServerUuid, peer: Progress) -> PeerStatus:
    return PeerStatus(
        uuid,
        peer.match,
        peer.next,
        peer.inflight_bytes,
        core.ticks - peer.last_reply_at,
        peer.needs_copy,
        peer.out_of_memory,
        core.ticks - peer.last_progress_at if peer.match < core.log.last.index else 0,
    )
