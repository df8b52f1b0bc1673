"""Read-index rounds (dissertation 6.4): confirmation, by a majority, that this node still leads.

All reads that are pending when a message is sent share its round. A round is confirmed when a majority has
replied to it with hybrid times at or above the reads', and an entry of the leader's own term is committed.

Leases (6.4.1): a follower that receives a message of its leader promises to take part in no election for a
while: neither to stand nor to vote. A confirmed round tells the leader how long a promise a majority made
when it received the round, which was after the round was sent; for somewhat less than that the leader
answers reads without a round. The host measures the time (`replica/member/reading/read_lease.py`), since the
core has no clock. The core knows the events after which earlier rounds give no lease
(docs/decisions/0011-read-leases.md).
"""

from nyala.common.ids import ServerUuid
from nyala.raft import quorum
from nyala.raft.messages import AppendReply
from nyala.raft.progress import Leadership, Progress, Round
from nyala.raft.ready import ReadConfirmed
from nyala.raft.state import RaftCore

NO_LEASE = 1 << 62
"""Above every number of a round."""


def join(core: RaftCore, hlc: int) -> int | None:
    """Join the next round; see `RaftNode.read_index`."""
    leadership = core.leadership
    if leadership is None:
        return None
    core.hlc = max(core.hlc, hlc)
    if leadership.round_unsent:
        newest = leadership.rounds[-1]
        newest.hlc = max(newest.hlc, hlc)
        newest.index = core.log.committed
        return newest.number
    core.round += 1
    leadership.rounds.append(Round(core.round, core.log.committed, hlc))
    leadership.round_unsent = core.dirty = True
    return core.round


def last_closed(core: RaftCore) -> int:
    """Return the newest round that no later read can join; the only one that a message may carry."""
    leadership = core.leadership
    if leadership is not None and leadership.round_unsent:
        return leadership.rounds[-1].number - 1
    return core.round


def likely_majority(core: RaftCore, leadership: Leadership) -> tuple[ServerUuid, ...]:
    """Return the voters to which a new round is sent first: a majority, if enough are likely to reply.

    A message costs two processes a wake-up. Voters that confirmed the last round and replied within the last
    heartbeat are chosen; if one does not reply now, the others are asked at the next tick (`unanswered`).
    """
    peers, since = leadership.peers, core.ticks - core.options.heartbeat_ticks - 1
    voters = [v for v in core.voters if v in peers]
    needed = quorum.majority(len(core.voters)) - (core.uuid in core.voters)
    confirmed = [v for v in voters if peers[v].round and peers[v].last_reply_at >= since]
    if len(confirmed) < needed:
        return tuple(voters)
    confirmed.sort(key=lambda v: peers[v].round, reverse=True)
    return tuple(confirmed[:needed])


def unanswered(core: RaftCore, leadership: Leadership) -> list[ServerUuid]:
    """Return the voters that have not replied to the newest round; empty if it is confirmed or unsent."""
    if not leadership.rounds or leadership.round_unsent:
        return []
    newest = leadership.rounds[-1].number
    return [v for v in core.voters if v in leadership.peers and leadership.peers[v].round < newest]


def confirm(core: RaftCore, leadership: Leadership) -> None:
    """Confirm the newest round that a majority has replied to, and with it all earlier ones."""
    if not leadership.rounds or core.log.committed < leadership.first:
        return
    answered: Round | None = None
    for pending in leadership.rounds:
        if not _echoed(core, leadership, pending):
            break
        answered = pending
    if answered is None:
        return
    leadership.rounds = [r for r in leadership.rounds if r.number > answered.number]
    if not leadership.rounds:
        leadership.round_unsent = False  # a single voter needs no replies
    promise_ms = promised_by_majority(core, leadership, answered.number)
    index = max(answered.index, leadership.first)
    core.out.confirmed = ReadConfirmed(answered.number, index, promise_ms)


def _echoed(core: RaftCore, leadership: Leadership, pending: Round) -> bool:
    echoed = {core.uuid} | {
        uuid
        for uuid, peer in leadership.peers.items()
        if peer.round >= pending.number and peer.hlc >= pending.hlc
    }
    return quorum.contains(core.voters, echoed)


# ---- leases ------------------------------------------------------------------------------------------


def note_promise(peer: Progress, message: AppendReply) -> None:
    """Record what a peer promised when it received a round, unless the reply is late."""
    if message.round >= peer.round:
        peer.promise_ms = message.promise_ms


def promised_by_majority(core: RaftCore, leadership: Leadership, number: int) -> int:
    """Return the longest promise that a majority has made since a round was sent, in milliseconds.

    Args:
        core: Raft state of the leader, which cannot be replaced by its own vote without knowing it.
        leadership: state of the peers in this term.
        number: number of the round.
    """
    peers = leadership.peers
    promised = {u: p.promise_ms for u, p in peers.items() if p.round >= number}
    promised[core.uuid] = core.options.promise_ms
    return quorum.reached([promised.get(v, 0) for v in core.voters])


def gives_lease(core: RaftCore, number: int) -> bool:
    """Return whether this node leads and may use a lease by the confirmation of a round."""
    leadership = core.leadership
    return leadership is not None and number >= leadership.lease_from


def drop_lease(core: RaftCore, leadership: Leadership) -> None:
    """Drop the lease: only rounds that begin after now give one again."""
    leadership.lease_from = max(leadership.lease_from, core.round + 1)


def renounce_leases(leadership: Leadership) -> None:
    """Drop the lease for the rest of the term: an election was ordered, for which no promise holds.

    The order, and the requests for votes that follow from it, may arrive after any delay.
    """
    leadership.lease_from = NO_LEASE
