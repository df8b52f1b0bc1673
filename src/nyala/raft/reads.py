"""Read-index rounds (dissertation 6.4): confirmation, by a majority, that this node still leads.

All reads that are pending when a message is sent share its round. A round is confirmed when a majority has
replied to it with hybrid times at or above the reads', and an entry of the leader's own term is committed.
"""

from nyala.common.ids import ServerUuid
from nyala.raft import quorum
from nyala.raft.progress import Leadership, Round
from nyala.raft.ready import ReadConfirmed
from nyala.raft.state import RaftCore


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
    core.out.confirmed = ReadConfirmed(answered.number, max(answered.index, leadership.first))


def _echoed(core: RaftCore, leadership: Leadership, pending: Round) -> bool:
    echoed = {core.uuid} | {
        uuid
        for uuid, peer in leadership.peers.items()
        if peer.round >= pending.number and peer.hlc >= pending.hlc
    }
    return quorum.contains(core.voters, echoed)
