"""What may be read of a node at any time: cheap properties for the host's hot paths, and a full status.

Rules: reads only.
"""

from nyala.common.ids import OpId, ServerUuid
from nyala.raft import replication
from nyala.raft.progress import Progress
from nyala.raft.state import Core
from nyala.raft.status import PeerStatus, Role, Status


class NodeView:
    """The read-only side of `RaftNode`."""

    core: Core

    @property
    def is_leader(self) -> bool:
        """Whether this node leads its group in its term (perhaps not yet accepting reads)."""
        return self.core.leadership is not None

    @property
    def role(self) -> Role:
        """What this node is to its group."""
        return self.core.role

    @property
    def term(self) -> int:
        """Current term."""
        return self.core.hard.term

    @property
    def leader(self) -> ServerUuid | None:
        """Leader of the current term, when known."""
        return self.core.leader

    @property
    def commit_index(self) -> int:
        """Last index known to be committed."""
        return self.core.log.committed

    @property
    def last(self) -> OpId:
        """Op id of the last entry, durable or not."""
        return self.core.log.last

    @property
    def last_stamp(self) -> int:
        """Stamp of the last entry; the host's next stamp lies above it."""
        return self.core.log.last_stamp

    @property
    def beats_next(self) -> bool:
        """Whether this leader's next tick sends heartbeats."""
        lead, least = self.core.leadership, self.core.options.heartbeat_ticks
        return lead is not None and lead.heartbeat_elapsed + 1 >= least

    @property
    def closed(self) -> int:
        """Hybrid time at or below which all is applied here and nothing is stamped any more; 0: unknown."""
        return self.core.closed

    @property
    def asleep(self) -> bool:
        """Whether the group is quiesced as far as this node is concerned."""
        return self.core.asleep

    def echoed(self, number: int) -> tuple[ServerUuid, ...]:
        """Return who has answered this leader since a read-index round began, itself among them."""
        lead = self.core.leadership
        peers = () if lead is None else lead.peers.items()
        return (self.core.uuid, *(u for u, p in peers if p.round >= number))

    @property
    def needed(self) -> int:
        """Lowest index that some member may still have to be sent; 0: not known (no leader heard)."""
        core = self.core
        return core.log.base.index + 1 if self.keeps_log else replication.needed(core)

    @property
    def keeps_log(self) -> bool:
        """Whether nothing of the log may go: a witness that is to get the data has nothing else (S1.53)."""
        me = self.core.configs.active.get(self.core.uuid)
        return me is not None and me.promote and me.voter and not me.electable

    def status(self) -> Status:
        """Return everything that is worth showing; costs more than the properties above."""
        return _status(self.core)


def _status(core: Core) -> Status:
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
        told=max(core.told, log.committed),
        quiesced=core.asleep,
        peers=() if lead is None else tuple(_peer(core, u, p) for u, p in lead.peers.items()),
    )


def _peer(core: Core, uuid: ServerUuid, peer: Progress) -> PeerStatus:
    return PeerStatus(
        uuid,
        peer.match,
        peer.next,
        peer.inflight_bytes,
        core.ticks - peer.heard_at,
        peer.needs_copy,
        peer.full,
        core.ticks - peer.moved_at if peer.match < core.log.last.index else 0,
    )
