"""Quiescence: a group that has nothing to do falls asleep; nothing is sent in it until something happens.

    leader, idle for `quiesce_heartbeats` heartbeats: its heartbeats offer sleep (`AppendEntries.quiesce`)
    follower whose log ends where the offer says, all of it committed and applied: asleep, and says so
    leader that has this word of every member, absent and silent ones excepted: asleep

A sleeping member's ticks do nothing. A message of its group wakes it, and so does its host, which watches the
servers that it sleeps on (`replica/multiraft/failure_detector.py`, docs/internals/many-groups.md). Only
progress is at stake: sleep changes no term, vote, entry or commit index.
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
from nyala.raft.state import RaftCore

SILENT_TIMEOUTS = 4
"""Election timeouts without an answer, after which a member that may stand is not waited for."""


def offer(core: RaftCore, leadership: Leadership, absent: Container[ServerUuid]) -> bool:
    """Return, at a leader's heartbeat, whether it offers sleep; fall asleep when all have taken the offer.

    Args:
        core: the leader's.
        leadership: of this term.
        absent: servers that have been silent for long: they are not waited for.
    """
    least = _idle_limit(core)
    inputs = (core.log.last.index, core.round, core.closed)
    waited_for = [
        u for u in leadership.peers if u not in absent and not _silent(core, leadership, u)
    ]
    if not least or inputs != leadership.idle_inputs or not _settled(core, leadership, waited_for):
        leadership.idle_inputs = inputs
        _reset_idle(leadership)
        return False
    leadership.idle += 1
    if leadership.idle > least and all(u in leadership.quiesced_peers for u in waited_for):
        core.quiesced = True
    return leadership.idle >= least


def _idle_limit(core: RaftCore) -> int:
    """Return after how many idle heartbeats a group sleeps; a new one that is eager does not wait."""
    least = core.options.quiesce_heartbeats
    return min(least, 1) if core.options.eager and core.log.last.index <= 1 else least


def _silent(core: RaftCore, leadership: Leadership, uuid: ServerUuid) -> bool:
    """Return whether a peer has not answered for so long that it is not waited for, though its server lives.

    Only one that asks for votes when it is back: that wakes its leader.
    """
    silent = core.ticks - leadership.peers[uuid].last_reply_at
    longest = SILENT_TIMEOUTS * core.options.election_ticks
    return silent >= longest and core.configs.active.may_lead(uuid)


def _settled(core: RaftCore, leadership: Leadership, waited_for: Sequence[ServerUuid]) -> bool:
    """Return whether nothing is under way, and a majority, with all who are waited for, has everything."""
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


def answered(core: RaftCore, leadership: Leadership, message: AppendReply) -> None:
    """Note whether a peer has accepted the pending offer to quiesce.

    Args:
        core: of the leader.
        leadership: of the core.
        message: the peer's answer.
    """
    if not message.quiesce:
        leadership.quiesced_peers.pop(message.sender, None)
    elif leadership.idle >= _idle_limit(core) and message.hint == core.log.last:
        leadership.quiesced_peers[message.sender] = None


def take(core: RaftCore, message: AppendEntries) -> bool:
    """Fall asleep as a follower, if the offer is for exactly this log; return whether it was taken."""
    core.quiesced = (
        message.quiesce
        and message.previous == core.log.last
        and core.closed_pending is None
        and _all_applied(core)
    )
    return core.quiesced


def wakes(core: RaftCore, message: AnyMessage) -> bool:
    """Return whether a message wakes a quiesced node. An offer does: the node quiesces again with its answer.

    An answer to one of several offers does not; nor does a candidate whom a follower refuses for its
    leader's sake, which sleeps on: its own timer must not run while the leader does not speak.
    """
    if message.term < core.term:
        return False
    if isinstance(message, AppendReply):
        late = message.quiesce and message.term == core.term and message.hint == core.log.last
        return not late
    if isinstance(message, FetchSuffix | Suffix):
        return False  # it is refused, or comes late: a leader is known here
    if isinstance(message, RequestVote):
        return (
            core.leadership is not None
            or message.override
            or message.sender == core.leader  # it leads no more
        )
    return True


def relies_on(core: RaftCore) -> tuple[ServerUuid, ...]:
    """Return the servers on which a sleeper relies: a leader on its peers', a follower on its leader's."""
    if core.leadership is not None:
        return tuple(core.leadership.peers)
    return () if core.leader is None else (core.leader,)


def wake(core: RaftCore) -> None:
    """Be up again: a leader speaks at its next tick, a follower has just heard its leader."""
    core.quiesced = False
    if core.leadership is not None:
        _reset_idle(core.leadership)
        core.leadership.heartbeat_elapsed = core.options.heartbeat_ticks
    else:
        core.silent = 0
        core.reset_timer()


def wake_suspecting(core: RaftCore) -> None:
    """Wake because a server is in doubt: for a leader one of its peers', for a follower its leader's.

    The follower asks its leader to speak, and does not wait for long.
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
    """Act on the end of a server's process, if its replica leads here; return whether it did."""
    known = core.silent >= core.options.election_ticks
    if core.quiesced or core.leadership is not None or core.leader != server or known:
        return False
    core.reset_timer()
    _suspect_leader(core, max(1, core.options.election_ticks // 2))  # fewer members compete
    return True


def _suspect_leader(core: RaftCore, spread: int) -> None:
    """Do not wait for the leader any longer, nor refuse a candidate for its sake.

    The election is drawn anew from `spread` ticks, so that not all groups stand in one tick, nor in the
    tick in which others have not heard yet what is known here.
    """
    core.silent = core.options.election_ticks
    core.timeout = 2 + core.random(spread)
