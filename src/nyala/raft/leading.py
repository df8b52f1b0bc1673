"""What may be asked of a member that leads: entries, rounds, another leader, other members, closed time."""

from collections.abc import Sequence

from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.common.ids import OpId, ServerUuid
from nyala.raft import election, quiescence, reads, replication
from nyala.raft.changes import Change, change, most_up_to_date
from nyala.raft.view import NodeView


class Leading(NodeView):
    """The side of `RaftNode` that only a leader serves."""

    def propose(self, payload: bytes, stamp: int) -> OpId | None:
        """Append an OPERATION, to be replicated by the next `ready()`.

        Returns:
            Its op id, or None when this node does not lead (or is handing leadership over). What became
            of it is known when an entry of that index is applied: the same term means it took effect,
            any other that it never will.
        """
        return replication.propose(self.core, payload, stamp)

    def read_index(self, hlc: int = 0) -> int | None:
        """Join the next read-index round (dissertation 6.4); reads of one `ready()` share a round.

        Args:
            hlc: the read's hybrid time; the round is confirmed by acknowledgements with HLCs at or
                above it, so that no later leader stamps at or below it.

        Returns:
            The round, answered by `Ready.confirmed` with this or a later round; None when not leader.
            A round whose leader steps down is never answered.
        """
        return reads.join(self.core, hlc)

    def transfer(self, to: ServerUuid | None = None) -> ServerUuid:
        """Hand leadership over (dissertation 3.10); given up after an election timeout.

        Args:
            to: who is to lead next; None: the most up-to-date voter that is heard from.

        Returns:
            Who is to lead next.

        Raises:
            NotLeader: this node does not lead.
            InvalidArgument: `to` is this node, not a voter, or not electable; or nobody else may lead.
        """
        core = self.core
        if to is None and core.leadership is not None:
            to = most_up_to_date(core, core.leadership)
        election.transfer(core, to or core.uuid)
        return to or core.uuid

    def change_config(
        self, changes: Sequence[Change], stamp: int, expected: OpId | None = None
    ) -> OpId:
        """Append one CONFIG entry with all of `changes`, active at once (dissertation 4.1).

        Any number of non-voters and attributes may change, and at most one voter with them. What became of
        it is known when an entry of the returned index is applied, as for a proposal.

        Args:
            changes: at most one for each server.
            stamp: as for `propose`.
            expected: op id that the active configuration must have.

        Raises:
            NotLeader: this node does not lead, or hands leadership over; to remove itself (or make itself
                a non-voter or a witness) a leader begins to do so, with details `reason` =
                STEPPING_DOWN and `leader`, its successor.
            Unavailable: an earlier change, or any entry of the own term, is not committed yet.
            CasFailed: the active configuration is not the expected one.
            InvalidArgument: see `changes.edited`.
        """
        return change(self.core, changes, stamp, expected)

    def leave_behind(self, index: int) -> None:
        """Take it that the peers furthest behind, if that is before `index`, need a copy.

        A peer that has not told this leader yet where its log agrees may be level: it is not among them
        before `quiescence.SILENT_TIMEOUTS` election timeouts have passed without its word.
        """
        core = self.core
        peers = [] if core.leadership is None else list(core.leadership.peers.values())
        since = core.ticks - quiescence.SILENT_TIMEOUTS * core.options.election_ticks
        known = [p for p in peers if p.located or p.moved_at <= since or core.asleep]
        behind = [p for p in known if not p.needs_copy and p.match + 1 < index]
        for peer in behind:
            peer.needs_copy = peer.match == min(p.match for p in behind)

    def publish_closed(self, stamp: int) -> None:
        """Promise followers that this leader stamps nothing at or below `stamp`.

        The host may do so only for a `stamp` that a confirmed read round covered, with every entry at
        or below it applied. Ignored when not leader.
        """
        if self.core.leadership is not None:
            assert stamp < MAX_HYBRID_TIME, f"closed time {stamp}"
            self.core.closed = max(self.core.closed, stamp)
            self.core.hlc = max(self.core.hlc, stamp)  # who hears of it stamps above it
