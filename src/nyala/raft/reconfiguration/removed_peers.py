"""Messages to removed peers: the log up to the entry of their removal, once that is committed.

A peer that receives its removal becomes NON_PARTICIPANT and requests no more votes (the dissertation only
limits the disruption by such servers, 4.2.3). It must not receive it before the commit: it would neither
campaign nor, with its longer log, vote for members that still need its vote. The leader retries for a while,
with entries in memory only; a peer that is unreachable or lacks more is left to the masters or an operator to
delete.
"""

from nyala.raft.messages import AppendReply
from nyala.raft.progress import Leadership
from nyala.raft.roles import leader
from nyala.raft.state import RaftCore

HEARTBEATS = 20
"""Heartbeats after the commit for which a removed peer that does not answer is kept."""


def send(core: RaftCore, leadership: Leadership) -> None:
    """Send removed peers the entries up to their removal that they lack, if the removal is committed."""
    for uuid, one in list(leadership.removed.items()):
        peer, log = one.peer, core.log
        while peer.next <= one.target <= log.committed and leader.has_room(core, peer):
            entries = log.slice(peer.next, core.options.max_append_bytes)
            if entries is None:
                del leadership.removed[uuid]
                break
            leader.send_entries(core, uuid, peer, entries[: one.target + 1 - peer.next])


def on_reply(core: RaftCore, leadership: Leadership, message: AppendReply) -> None:
    """Process the reply of a removed peer; one that has the log up to its removal is dropped.

    Args:
        core: Raft state of the leader.
        leadership: state of the peers in this term.
        message: the reply.
    """
    one = leadership.removed.get(message.sender)
    if one is None or message.round < one.peer.joined_round:
        return
    if not message.success:
        leader.find_match(core, one.peer, message.hint)
    elif one.peer.acknowledge(message.match, message.hint.index) and message.match >= one.target:
        del leadership.removed[message.sender]
    core.dirty = True


def tick(core: RaftCore, leadership: Leadership) -> None:
    """At a heartbeat, send again, or drop a peer after `HEARTBEATS` attempts."""
    if leadership.heartbeat_elapsed:
        return
    for uuid, one in list(leadership.removed.items()):
        if one.target > core.log.committed:
            continue
        one.heartbeats += 1
        if one.heartbeats > HEARTBEATS:
            del leadership.removed[uuid]
        else:
            leader.heartbeat_or_probe(core, uuid, one.peer)
