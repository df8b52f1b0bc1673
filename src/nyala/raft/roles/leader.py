"""A leader's side of AppendEntries: messages to peers, acknowledgements, the commit index.

Dissertation 3.5, 3.6.2 (only entries of the own term are counted), 6.2 (stepping down without a majority),
10.2.1 (writing to the own disk in parallel), 10.2.2 (pipelining). A leader counts itself only up to its
durable index. `replicate` cuts entries into messages once per `ready()`, so that proposals made together are
sent together.
"""

from collections.abc import Container, Sequence

from nyala.common.errors import Corrupt
from nyala.common.ids import NO_OP, OpId, ServerUuid
from nyala.raft import quorum
from nyala.raft.log_view import size_of
from nyala.raft.messages import AppendEntries, AppendReply, Entry, EntryKind
from nyala.raft.progress import Flow, Leadership, Progress, RemovedPeer
from nyala.raft.ready import ReadRequest
from nyala.raft.roles import quiescence, reads
from nyala.raft.state import RaftCore


def lead(core: RaftCore) -> None:
    """Become leader and append a NOOP of the own term, so that earlier entries can commit (6.4)."""
    log = core.log
    first = log.last.index + 1
    leadership = Leadership(first, lease_from=core.round + 1)
    core.become_leader(leadership)
    core.append(Entry(OpId(core.term, first), own_stamp(core), EntryKind.NOOP))
    update_peers(core, leadership)
    core.dirty = True


def own_stamp(core: RaftCore) -> int:
    """Return a timestamp for an entry that the core itself appends."""
    return max(core.hlc, core.log.last_stamp + 1, core.closed + 1)


def update_peers(core: RaftCore, leadership: Leadership) -> None:
    """Add and remove peers according to the active configuration, whose entry was just appended.

    A peer that is added may have been a member before and have lost its log: replies to messages of earlier
    rounds do not count.
    """
    before, last = leadership.peers, core.log.last.index
    leadership.peers = {
        m.uuid: before.get(m.uuid) or Progress(last, core.ticks, core.round)
        for m in core.configs.active.members
        if m.uuid != core.uuid
    }
    for uuid in leadership.peers:
        leadership.removed.pop(uuid, None)
    for uuid, peer in before.items():
        if uuid not in leadership.peers:
            leadership.removed[uuid] = RemovedPeer(peer, last)


def propose(core: RaftCore, payload: bytes, stamp: int) -> OpId | None:
    """Append an operation as leader; see `RaftNode.propose`.

    Args:
        core: Raft state of the node.
        payload: payload of the operation.
        stamp: hybrid time above the log's last one and the closed time.

    Returns:
        Its op id; None: this node does not lead, or is transferring leadership.
    """
    leadership = core.leadership
    if leadership is None or leadership.transfer is not None:
        return None
    assert stamp > core.closed, f"stamp {stamp} is at or below the closed time {core.closed}"
    op = OpId(core.hard.term, core.log.last.index + 1)
    core.log.append(Entry(op, stamp, EntryKind.OPERATION, payload))
    core.dirty = True
    return op


# ---- sending -----------------------------------------------------------------------------------------


def replicate(core: RaftCore, leadership: Leadership) -> None:
    """Send each peer the entries that it lacks, within its window; send a new read round to a majority."""
    asked = reads.likely_majority(core, leadership) if leadership.round_unsent else ()
    leadership.round_unsent = core.dirty = False
    for uuid, peer in leadership.peers.items():
        sent = False
        while has_room(core, peer):
            entries = core.log.slice(peer.next, core.options.max_append_bytes)
            if entries is None:
                peer.reading = True
                core.out.read.append(ReadRequest(uuid, peer.next, core.options.max_append_bytes))
                break
            send_entries(core, uuid, peer, entries)
            sent = True
        if uuid in asked and not sent:
            heartbeat(core, uuid, peer)


def has_room(core: RaftCore, peer: Progress) -> bool:
    """Return whether a peer lacks entries and its window allows sending more now."""
    if peer.next > core.log.last.index or peer.reading or peer.waiting or peer.needs_copy:
        return False
    if peer.out_of_memory:
        return False
    return peer.inflight_bytes < core.options.inflight_bytes


def send_entries(
    core: RaftCore, uuid: ServerUuid, peer: Progress, entries: Sequence[Entry]
) -> None:
    """Send a peer the next entries.

    Args:
        core: Raft state of the leader.
        uuid: server id of the peer.
        peer: its progress.
        entries: contiguous from `peer.next` on, at least one.
    """
    _send(core, uuid, peer, peer.next - 1, tuple(entries))
    peer.sent(entries[-1].id.index, sum(map(size_of, entries)))


def heartbeat(core: RaftCore, uuid: ServerUuid, peer: Progress, *, quiesce: bool = False) -> None:
    """Send an AppendEntries without entries: commit index, closed time and read round only.

    In STREAM mode `previous` is the last entry received by the peer, so that the heartbeat may overtake
    entries; in PROBE mode it is a probe. With `probe_match` set it asks for the entry that the peer has
    acknowledged.

    Args:
        core: Raft state of the leader.
        uuid: server id of the peer.
        peer: its progress.
        quiesce: offer to quiesce.
    """
    index = peer.received if peer.flow is Flow.STREAM else peer.next - 1
    index = peer.match if peer.probe_match else index
    _send(core, uuid, peer, max(index, core.log.base.index), (), quiesce=quiesce)


def _send(
    core: RaftCore,
    uuid: ServerUuid,
    peer: Progress,
    previous: int,
    entries: tuple[Entry, ...],
    *,
    quiesce: bool = False,
) -> None:
    core.send(
        AppendEntries(
            sender=core.uuid,
            to=uuid,
            term=core.hard.term,
            hlc=core.hlc,
            previous=core.log.op_id(previous),
            entries=entries,
            commit=core.log.committed,
            round=reads.last_closed(core),
            closed=core.closed,
            retain_index=retain_index(core),
            quiesce=quiesce,
            acknowledged=0 < previous <= peer.match,
        )
    )


def retain_index(core: RaftCore) -> int:
    """Return the lowest index that some member may still have to be sent; 0: unknown.

    A leader derives it from its peers' match indexes (0 for a peer without a reply, so every entry counts); a
    follower takes it from the leader of this term. A peer that needs a copy needs no entry. Entries that a
    copy made from here needs count too.
    """
    if core.leadership is None:
        found = core.retain_index
    else:
        others = [p.match for p in core.leadership.peers.values() if not p.needs_copy]
        found = min([core.log.last.index, *others]) + 1
    return min(found, core.copy_retain_index) if core.copy_retain_index else found


def entries_read(core: RaftCore, uuid: ServerUuid, entries: Sequence[Entry]) -> None:
    """Send a peer the entries that the host read from the log; see `RaftNode.entries_read`.

    Args:
        core: Raft state of the node.
        uuid: server id of the peer.
        entries: empty: the log no longer holds them.
    """
    peer = core.leadership.peers.get(uuid) if core.leadership is not None else None
    if peer is None or not peer.reading:
        return  # requested in an earlier leadership, or before the peer was probed again
    peer.reading = False
    core.dirty = True
    if not entries:
        peer.needs_copy = True
        return
    if entries[0].id.index != peer.next:
        return
    for entry in entries:
        assert core.log.holds(entry.id), f"the log gave {entry.id}, which is not in {core.log!r}"
    send_entries(core, uuid, peer, entries)


def mark_for_copy(core: RaftCore, index: int) -> None:
    """Mark the peers that are furthest behind as needing a copy; see `RaftNode.mark_for_copy`."""
    peers = [] if core.leadership is None else list(core.leadership.peers.values())
    since = core.ticks - quiescence.SILENT_TIMEOUTS * core.options.election_ticks
    known = [p for p in peers if p.match_known or p.last_progress_at <= since or core.quiesced]
    behind = [p for p in known if not p.needs_copy and p.match + 1 < index]
    for peer in behind:
        peer.needs_copy = peer.match == min(p.match for p in behind)


# ---- replies -----------------------------------------------------------------------------------------


def on_reply(core: RaftCore, leadership: Leadership, message: AppendReply) -> None:
    """Process a peer's reply; it may be late, duplicated or out of order.

    Args:
        core: Raft state of the leader.
        leadership: state of the peers in this term.
        message: the answer.

    Raises:
        Corrupt: the peer acknowledges entries that do not exist; nothing was changed.
    """
    if message.success and max(message.match, message.hint.index) > core.log.last.index:
        raise Corrupt(
            f"{message.sender} acknowledges {message.match} (received {message.hint}), but the log of "
            f"leader {core.uuid} in term {core.term} ends at {core.log.last}; the answer was dropped"
        )
    peer = leadership.peers.get(message.sender)
    if peer is None or message.round < peer.joined_round:
        return
    peer.last_reply_at = core.ticks
    reads.note_promise(peer, message)
    peer.round = max(peer.round, message.round)
    peer.hlc = max(peer.hlc, message.hlc)
    quiescence.record_reply(core, leadership, message)
    if message.success:
        if peer.acknowledge(message.match, message.hint.index):
            peer.last_progress_at = core.ticks
            advance_commit(core, leadership)
    else:
        if message.lost_entries:
            reset_peer(core, peer)
        find_match(core, peer, message.hint)
    peer.out_of_memory = False
    if message.out_of_memory:
        peer.mark_out_of_memory()
    reads.confirm(core, leadership)
    core.dirty = True


def reset_peer(core: RaftCore, peer: Progress) -> None:
    """Discard a peer's acknowledgements, because its log lost entries.

    They count for no commit and no read round. Replies to messages sent before now say nothing about its
    current log.
    """
    core.round += 1
    peer.reset(core.round)


def find_match(core: RaftCore, peer: Progress, hint: OpId) -> None:
    """Step back to where the logs may agree: at most one refusal per conflicting term (3.5).

    Args:
        core: Raft state of the leader.
        peer: progress of the peer that refused.
        hint: the refusal's.
    """
    if hint.index < peer.match:
        peer.probe_match = True  # a late refusal, or the peer has lost acknowledged entries
        return
    log = core.log
    agreed = log.at_or_below(hint.index, hint.term)
    if agreed == log.base != hint and hint.index <= log.base.index and log.base != NO_OP:
        peer.needs_copy = True
    if (peer.waiting or peer.reading) and peer.next == agreed.index + 1:
        return  # a duplicate refusal: the entries after that one are in flight
    peer.probe(agreed.index + 1)


def advance_commit(core: RaftCore, leadership: Leadership) -> None:
    """Commit the entries that a majority has durably, once they include one of this term (3.6.2)."""
    index = quorum.reached([_durable_at(core, leadership, v) for v in core.voters])
    if index > core.log.committed and core.log.term(index) == core.term:
        core.commit(index)
        reads.confirm(core, leadership)


def _durable_at(core: RaftCore, leadership: Leadership, voter: ServerUuid) -> int:
    if voter == core.uuid:
        return core.log.stable
    peer = leadership.peers.get(voter)
    return 0 if peer is None else peer.match


# ---- time --------------------------------------------------------------------------------------------


def tick(core: RaftCore, leadership: Leadership, absent: Container[ServerUuid]) -> None:
    """Process a tick of a leader: heartbeats, retransmission, stepping down without a majority.

    Args:
        core: Raft state of the leader.
        leadership: state of the peers in this term.
        absent: servers that have been silent for long; see `quiescence.offer`.
    """
    transfer = leadership.transfer
    if transfer is not None:
        transfer.ticks_left -= 1
        if transfer.ticks_left <= 0:
            leadership.transfer = None
    leadership.heartbeat_elapsed += 1
    if leadership.heartbeat_elapsed < core.options.heartbeat_ticks:
        for uuid in reads.unanswered(core, leadership):
            heartbeat(core, uuid, leadership.peers[uuid])
            core.dirty = True
        return
    leadership.heartbeat_elapsed = 0
    if transfer is not None:
        transfer.ordered = False  # the TimeoutNow may have been lost
    if not _reaches_majority(core, leadership):
        core.become_follower(core.term, None)
        return
    offer = quiescence.offer(core, leadership, absent)
    if core.quiesced:
        return
    core.dirty = True
    leadership.round_unsent = False  # a pending read round is sent with these
    for uuid, peer in leadership.peers.items():
        heartbeat_or_probe(core, uuid, peer, quiesce=offer)


def heartbeat_or_probe(
    core: RaftCore, uuid: ServerUuid, peer: Progress, *, quiesce: bool = False
) -> None:
    """Send a heartbeat; if the peer has stalled, assume that the entries in flight are lost and probe it.

    Args:
        core: Raft state of the leader.
        uuid: server id of the peer.
        peer: its progress.
        quiesce: offer to quiesce.
    """
    if peer.match == core.log.last.index:
        peer.last_progress_at = core.ticks
    if peer.stalled():
        peer.probe(max(peer.received, core.log.base.index) + 1)
    heartbeat(core, uuid, peer, quiesce=quiesce)


def _reaches_majority(core: RaftCore, leadership: Leadership) -> bool:
    since = core.ticks - core.options.election_ticks
    answered = {uuid for uuid, peer in leadership.peers.items() if peer.last_reply_at >= since}
    return quorum.contains(core.voters, answered | {core.uuid})
