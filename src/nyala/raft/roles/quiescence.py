"""Quiescence: an idle group sends no messages until there is work.

    leader, idle for `quiesce_heartbeats` heartbeats: offers to quiesce (`AppendEntries.quiesce`)
    follower, its log equal to the leader's, all of it committed and applied: quiesces and replies
    leader, all members have replied, except absent and silent ones: quiesces

A quiesced member ignores ticks. It is woken by new work of its own (a write, a read, a change of
configuration: `RaftNode.ready`), by most messages of its group (`wakes`), and by its host, which monitors the
servers that it relies on (`replica/multiraft/failure_detector.py`, docs/internals/many-groups.md). Quiescence
changes no term, vote, entry or commit index; errors in it could affect liveness only.
"""

from collections.abc import Container, Sequence

from nyala.common.ids import ServerUuid
from nyala.raft import quorum
from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    FetchSuffix,
    RequestVote,
    Suffix,
)
from nyala.raft.progress import Leadership
from nyala.raft.roles import reads
from nyala.raft.state import RaftCore

SILENT_TIMEOUTS = 4
"""Election timeouts without a reply after which the leader quiesces without an electable member."""
RETRIES = 4
"""Number of pre-votes that are repeated soon, without success, after the exit of a leader's process."""


def offer(core: RaftCore, leadership: Leadership, absent: Container[ServerUuid]) -> bool:
    """Return, at a leader's heartbeat, whether it offers to quiesce; quiesce when all have accepted.

    Args:
        core: state of the leader's node.
        leadership: state of the peers in this term.
        absent: servers that have been silent for long; their replies are not required.
    """
    least = _idle_limit(core)
    inputs = (core.log.last.index, core.round, core.closed)
    waited_for = [
        u for u in leadership.peers if u not in absent and not _silent(core, leadership, u)
    ]
    busy = not least or core.awake or inputs != leadership.idle_inputs
    if busy or not _settled(core, leadership, waited_for):
        leadership.idle_inputs = inputs
        _reset_idle(leadership)
        return False
    leadership.idle += 1
    if leadership.idle > least and all(u in leadership.quiesced_peers for u in waited_for):
        core.quiesced = True
        reads.drop_lease(core, leadership)
    return leadership.idle >= least


def _idle_limit(core: RaftCore) -> int:
    """Return the number of idle heartbeats after which a group quiesces; 1 for a new, eager group."""
    least = core.options.quiesce_heartbeats
    return min(least, 1) if core.options.eager and core.log.last.index <= 1 else least


def _silent(core: RaftCore, leadership: Leadership, uuid: ServerUuid) -> bool:
    """Return whether a peer has not replied for so long that its reply is not required.

    True of electable peers only: such a peer requests votes when it is back, which wakes its leader.
    """
    silent = core.ticks - leadership.peers[uuid].last_reply_at
    longest = SILENT_TIMEOUTS * core.options.election_ticks
    return silent >= longest and core.configs.active.may_lead(uuid)


def _settled(core: RaftCore, leadership: Leadership, waited_for: Sequence[ServerUuid]) -> bool:
    """Return whether nothing is pending, and a majority with all of `waited_for` has every entry."""
    if leadership.transfer is not None or leadership.rounds or not _all_applied(core):
        return False
    if any(leadership.peers[u].match != core.log.last.index for u in waited_for):
        return False
    promoting = any(m.promote and not m.voter for m in core.configs.active.members)
    present = (core.uuid, *waited_for)
    return not promoting and not leadership.removed and quorum.contains(core.voters, present)


def _all_applied(core: RaftCore) -> bool:
    log = core.log
    return log.applied == log.committed == log.stable == log.last.index


def _reset_idle(leadership: Leadership) -> None:
    leadership.idle = 0
    leadership.quiesced_peers.clear()


def record_reply(core: RaftCore, leadership: Leadership, message: AppendReply) -> None:
    """Record whether a peer has accepted the pending offer to quiesce.

    Args:
        core: state of the leader's node.
        leadership: state of the peers in this term.
        message: the peer's reply.
    """
    if not message.quiesce:
        leadership.quiesced_peers.pop(message.sender, None)
    elif leadership.idle >= _idle_limit(core) and message.hint == core.log.last:
        leadership.quiesced_peers[message.sender] = None


def receive(core: RaftCore, message: AppendEntries) -> bool:
    """Quiesce as a follower if the offer is for exactly this log; return whether it was accepted."""
    core.quiesced = (
        message.quiesce
        and message.previous == core.log.last
        and core.closed_pending is None
        and _all_applied(core)
    )
    return core.quiesced


def wakes(core: RaftCore, message: AnyMessage) -> bool:
    """Return whether a message wakes a quiesced node. An offer does: the node quiesces again with its reply.

    A late reply to an earlier offer does not. Neither does a candidate that a follower refuses because of its
    leader: the follower's timer must not run while its leader sends no heartbeats.
    """
    if message.term < core.term:
        return False
    if isinstance(message, AppendReply):
        late = message.quiesce and message.term == core.term and message.hint == core.log.last
        return not late
    if isinstance(message, FetchSuffix | Suffix):
        return False  # refused or late: a leader is known here
    if isinstance(message, RequestVote):
        return (
            core.leadership is not None
            or message.override
            or message.sender == core.leader  # it no longer leads
        )
    return True


def failure_sources(core: RaftCore) -> tuple[ServerUuid, ...]:
    """Return the servers that a quiesced node relies on: a leader its peers, a follower its leader."""
    if core.leadership is not None:
        return tuple(core.leadership.peers)
    return () if core.leader is None else (core.leader,)


def wake(core: RaftCore) -> None:
    """Wake: a leader sends heartbeats at its next tick, a follower restarts its election timer."""
    core.quiesced = False
    if core.leadership is not None:
        _reset_idle(core.leadership)
        core.leadership.heartbeat_elapsed = core.options.heartbeat_ticks
    else:
        core.ticks_since_leader = 0
        core.reset_timer()


def wake_on_failure(core: RaftCore) -> None:
    """Wake because a server may have failed: one of the peers if this node leads, else the leader.

    The follower requests a message from its leader, and starts an election soon.
    """
    if not core.quiesced:
        return
    wake(core)
    if core.leadership is not None or core.leader is None:
        return
    _suspect_leader(core, core.options.election_ticks)
    core.send(
        AppendReply(
            sender=core.uuid,
            to=core.leader,
            term=core.term,
            hlc=core.hlc,
            success=True,
            match=core.log.last.index,
            hint=core.log.last,
            round=core.round_seen,
        )
    )


def peer_exited(core: RaftCore, server: ServerUuid) -> bool:
    """React to the exit of a server's process; return whether it leads this group."""
    known = core.ticks_since_leader >= core.options.election_ticks
    if core.quiesced or core.leadership is not None or core.leader != server or known:
        return False
    core.reset_timer()
    _suspect_leader(core, max(1, core.options.election_ticks // 2))  # fewer members compete
    return True


def _suspect_leader(core: RaftCore, spread: int) -> None:
    """Stop waiting for the leader, and grant votes to other candidates.

    The election timeout is drawn from `spread` ticks plus two, so that groups do not all start elections in
    one tick, nor before the other members have noticed the failure, and the promises of all have ended.
    """
    core.ticks_since_leader = core.options.election_ticks
    core.timeout = max(2, core.promise_ticks + 1) + core.random(spread)
    core.retries = RETRIES
