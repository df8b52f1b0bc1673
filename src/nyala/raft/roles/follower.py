"""A follower's side of AppendEntries: check, append, overwrite conflicting entries, advance the commit index.

Dissertation 3.5. `RaftCore.verified` is the index up to which this log is known to agree with the log of the
term's leader; a reply acknowledges the durable part of it, and the commit index never exceeds it.
"""

from nyala.common.errors import Corrupt, Forbidden
from nyala.common.ids import OpId
from nyala.raft import membership
from nyala.raft.log_view import LogView
from nyala.raft.messages import AppendEntries, AppendReply, Entry, EntryKind, Suffix
from nyala.raft.roles import quiescence
from nyala.raft.state import RaftCore, RaftState


def check(message: AppendEntries | Suffix) -> None:
    """Reject an inconsistent message before it changes anything.

    Raises:
        Corrupt: indexes have gaps, terms or timestamps decrease, an entry is newer than its sender's term, or
            a configuration cannot be read.
    """
    index, term, stamp = message.previous.index, message.previous.term, 0
    for entry in message.entries:
        op = entry.id
        if (
            op.index != index + 1
            or op.term < term
            or op.term > message.term
            or entry.stamp <= stamp
        ):
            raise Corrupt(
                f"{type(message).__name__} from {message.sender} in term {message.term} holds entry "
                f"{op} stamped {entry.stamp} after {OpId(term, index)} stamped {stamp}; it was dropped"
            )
        if entry.kind is EntryKind.CONFIG:
            membership.decode(entry.payload, op)
        index, term, stamp = op.index, op.term, entry.stamp


def on_append(core: RaftCore, message: AppendEntries) -> None:
    """Process entries or a heartbeat of the current term's leader, and reply.

    Raises:
        Forbidden: the leader's log conflicts with entries committed here; see `_check_committed`.
    """
    log = core.log
    if message.commit > core.known_commit:
        core.known_commit, core.known_term = message.commit, message.term
    previous = message.previous
    if previous.index >= log.committed and not log.holds(previous):
        hint = log.at_or_below(previous.index, previous.term)
        if message.acknowledged:
            core.lost_last = max(core.lost_last, previous)
        _answer(core, message, success=False, match=0, hint=hint, last=None)
        return
    _check_committed(log, previous)
    entries = () if core.out_of_memory else message.entries
    added = merge(core, entries)
    core.verified = max(core.verified, log.committed, previous.index + len(entries))
    _note_commit(core, message)
    agreed = log.op_id(core.verified)
    if quiescence.receive(core, message):
        _answer(core, message, success=True, match=core.verified, hint=agreed, last=None)
    elif added or core.verified <= log.stable:
        _answer(core, message, success=True, match=core.verified, hint=agreed, last=agreed)
    else:  # a heartbeat's reply acknowledges what is durable already, and need not wait
        _answer(core, message, success=True, match=log.stable, hint=agreed, last=None)


def merge(core: RaftCore, entries: tuple[Entry, ...]) -> bool:
    """Truncate conflicting entries and append new ones; return whether anything was appended."""
    log = core.log
    for position, entry in enumerate(entries):
        index = entry.id.index
        if index <= log.committed:
            _check_committed(log, entry.id)
            continue
        if index <= log.last.index:
            if log.term(index) == entry.id.term:
                continue
            _check_stamp(log.stamp(index - 1), entry)
            core.truncate(index)
        else:
            _check_stamp(log.last_stamp, entry)
        for new in entries[position:]:
            core.append(new)
        return True
    return False


def _check_committed(log: LogView, op: OpId) -> None:
    """Reject a log that conflicts with entries committed here.

    This happens only after an unsafe recovery (`unsafe_recovery.py`), if a removed member is added again with
    its old replica. For a collected entry only the term of a later entry is known, which is not below its
    own.

    Raises:
        Forbidden: the entry `op`, at or below the commit index, differs from the one in this log.
    """
    known = op.term <= log.base.term if op.index < log.base.index else log.holds(op)
    if not known:
        raise Forbidden(
            f"the group has {op} where this replica had committed another entry: it was removed by an unsafe "
            "recovery, and its log has diverged. It no longer participates: delete it and let the group "
            "copy it again"
        )


def _check_stamp(before: int, entry: Entry) -> None:
    if entry.stamp <= before:
        raise Corrupt(
            f"entry {entry.id} is stamped {entry.stamp}, not above {before} of the entry before it; "
            "it was dropped"
        )


def _note_commit(core: RaftCore, message: AppendEntries) -> None:
    log = core.log
    commit = min(message.commit, core.verified)
    if commit > log.committed:
        core.commit(commit)
    core.retain_index = message.retain_index
    if message.closed > core.closed and core.closed_pending is None:
        core.closed_pending = (message.closed, message.commit)
    advance_closed(core)


def advance_closed(core: RaftCore) -> None:
    """Adopt a pending closed time once all entries that it covers are applied here."""
    if core.closed_pending is not None and core.log.applied >= core.closed_pending[1]:
        core.closed = max(core.closed, core.closed_pending[0])
        core.closed_pending = None


def _answer(
    core: RaftCore,
    message: AppendEntries,
    *,
    success: bool,
    match: int,
    hint: OpId,
    last: OpId | None,
) -> None:
    reply = AppendReply(
        sender=core.uuid,
        to=message.sender,
        term=core.term,
        hlc=core.hlc,
        success=success,
        match=match,
        hint=hint,
        round=core.round_seen,
        quiesce=core.quiesced,
        lost_entries=message.acknowledged and not success and message.term == core.term,
        out_of_memory=core.out_of_memory,
        promise_ms=core.options.promise_ms if message.term == core.term else 0,
    )
    if last is None:
        core.send(reply)
    else:
        core.send(reply, last)


def reject_stale(core: RaftCore, message: AppendEntries) -> None:
    """Reply to a leader of an earlier term with the current term, so that it steps down."""
    _answer(core, message, success=False, match=0, hint=core.log.last, last=None)


def note_leader(core: RaftCore, message: AppendEntries) -> None:
    """Record contact with the leader of the current term.

    Raises:
        AssertionError: two leaders in one term.
    """
    assert core.state is not RaftState.LEADER, (
        f"{message.sender} and {core.uuid} lead term {core.term}"
    )
    assert core.leader in (None, message.sender), (
        f"{core.leader}, {message.sender} lead {core.term}"
    )
    if core.state is not RaftState.FOLLOWER or core.leader is None:
        core.become_follower(core.term, message.sender)
    core.ticks_since_leader = 0
    core.promise_ticks = core.options.promise_ticks
    core.retries = 0
    core.reset_timer()
    core.round_seen = max(core.round_seen, message.round)
