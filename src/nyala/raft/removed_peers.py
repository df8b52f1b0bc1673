"""A leader's last word to who was removed: the log up to the entry of its removal, once that is committed.

Whoever gets it is a NON_PARTICIPANT from then on, and asks for no more votes (the dissertation only
bears with such servers, 4.2.3). Not before the commit: one that is told too early neither stands nor,
for its longer log, votes for those who count on it still. It is tried for a while, from memory; who
cannot be reached, or lacks more, is borne with until somebody deletes it.
"""

from nyala.raft import leader
from nyala.raft.messages import AppendReply
from nyala.raft.progress import Leadership
from nyala.raft.state import RaftCore

HEARTBEATS = 20
"""Heartbeats after the commit for which a removed peer that does not answer is kept."""


def send(core: RaftCore, leadership: Leadership) -> None:
    """Send to those who leave what they lack of the log up to their removal, if that is committed."""
    for uuid, one in list(leadership.removed.items()):
        peer, log = one.peer, core.log
        while peer.next <= one.target <= log.committed and leader.has_room(core, peer):
            entries = log.slice(peer.next, core.options.max_append_bytes)
            if entries is None:
                del leadership.removed[uuid]
                break
            leader.send_entries(core, uuid, peer, entries[: one.target + 1 - peer.next])


def on_reply(core: RaftCore, leadership: Leadership, message: AppendReply) -> None:
    """Take the answer of a removed peer; one that has all of the log up to its removal is forgotten.

    Args:
        core: of the leader.
        leadership: of the core.
        message: the answer.
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
    """At a heartbeat: ask again, or give up."""
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
