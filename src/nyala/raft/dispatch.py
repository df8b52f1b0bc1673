"""Dispatch of messages and ticks to the rules of each role, and collection of the work for the host."""

from collections.abc import Container

from nyala.common.ids import ServerUuid
from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    DurablePoint,
    FetchSuffix,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.raft.ready import NOTHING, NOWHERE, ReadRequest, Ready
from nyala.raft.reconfiguration import promotion, removed_peers
from nyala.raft.roles import election, follower, leader, quiescence, reads, witness
from nyala.raft.state import Output, RaftCore


def enter_term(core: RaftCore, message: AnyMessage) -> None:
    """Enter the higher term of a message, except for pre-votes and suffixes of a witness."""
    if isinstance(message, RequestVote | FetchSuffix | Suffix):
        return  # leader stickiness first: election.on_request; suffixes: witness.py
    if isinstance(message, VoteReply) and message.pre and message.granted:
        return  # `term` is the requested one
    leads = isinstance(message, AppendEntries | TimeoutNow)
    core.become_follower(message.term, message.sender if leads else None)


def take(core: RaftCore, message: AnyMessage) -> None:
    """Dispatch a message of the current or an older term."""
    if isinstance(message, RequestVote):
        election.on_request(core, message)
    elif isinstance(message, VoteReply):
        election.on_reply(core, message)
        witness.on_refusal(core, message)
    elif isinstance(message, FetchSuffix):
        witness.on_fetch(core, message)
    elif isinstance(message, Suffix):
        witness.on_suffix(core, message)
    elif message.term < core.term:
        if isinstance(message, AppendEntries):
            follower.reject_stale(core, message)
    elif isinstance(message, AppendEntries):
        follower.note_leader(core, message)
        follower.on_append(core, message)
    elif isinstance(message, AppendReply):
        if core.leadership is not None and not core.quiesced:
            leader.on_reply(core, core.leadership, message)
            removed_peers.on_reply(core, core.leadership, message)
            election.continue_transfer(core)
    else:
        election.on_timeout_now(core, message)


def tick(core: RaftCore, hlc: int, absent: Container[ServerUuid]) -> None:
    """Process a tick of a node that is not quiesced.

    Args:
        core: its state.
        hlc: reading of the clock.
        absent: servers that have been silent for long.
    """
    core.hlc = hlc
    core.ticks += 1
    if core.leadership is None:
        election.tick(core)
    else:
        leader.tick(core, core.leadership, absent)
        election.continue_transfer(core)
        if core.leadership is not None and core.leadership.removed:
            removed_peers.tick(core, core.leadership)
        if core.leadership is not None and core.configs.active.promoting:
            promotion.tick(core, core.leadership)


def collect(core: RaftCore) -> Ready:
    """Collect the work for the host, replication first, because it adds to the rest."""
    if core.dirty and core.leadership is not None:
        if core.quiesced:
            quiescence.wake(core)
        leader.replicate(core, core.leadership)
        removed_peers.send(core, core.leadership)
        reads.confirm(core, core.leadership)
    append = core.log.take_unwritten()
    persist = core.hard if core.version != core.version_out else None
    core.version_out = core.version
    out = core.out
    apply = (*out.apply, *core.log.take_applicable())
    if missing := core.log.take_missing():
        out.read.append(ReadRequest(core.uuid, missing, core.options.max_append_bytes))
    if not (append or persist or apply or out):
        return NOTHING
    core.out = Output()
    return Ready(
        persist=persist,
        append=append,
        point=DurablePoint(core.version, core.log.last) if append or persist else NOWHERE,
        send=tuple(out.send),
        read=tuple(out.read),
        apply=apply,
        confirmed=out.confirmed,
        config=out.config,
        config_committed=out.config_committed,
    )
