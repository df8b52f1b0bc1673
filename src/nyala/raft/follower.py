"""A follower's side of replication: check, append, overwrite what conflicts, learn what is committed.

Dissertation 3.5. `RaftCore.verified` is how far our log is known to agree with that of this term's leader;
an answer claims the part of it that is durable, and the commit index never passes it.
"""

from nyala.common.errors import Corrupt, Forbidden
from nyala.common.ids import OpId
from nyala.raft import membership, quiescence
from nyala.raft.log_view import LogView
from nyala.raft.messages import AppendEntries, AppendReply, Entry, EntryKind, Suffix
from nyala.raft.state import RaftCore, RaftState


def check(message: AppendEntries | Suffix) -> None:
    """Refuse a message that contradicts itself, before it changes anything.

    Raises:
        Corrupt: indexes have gaps, terms or stamps fall, an entry is newer than its sender's term, or
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
    """Take entries or a heartbeat from the leader of the present term, and answer.

    Raises:
        Forbidden: the leader's log parts from what is committed here; see `_check_committed`.
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
    entries = () if core.full else message.entries
    added = merge(core, entries)
    core.verified = max(core.verified, log.committed, previous.index + len(entries))
    _note_commit(core, message)
    agreed = log.op_id(core.verified)
    if quiescence.take(core, message):
        _answer(core, message, success=True, match=core.verified, hint=agreed, last=None)
    elif added or core.verified <= log.stable:
        _answer(core, message, success=True, match=core.verified, hint=agreed, last=agreed)
    else:  # a heartbeat's answer claims what is durable already, and need not wait
        _answer(core, message, success=True, match=log.stable, hint=agreed, last=None)


def merge(core: RaftCore, entries: tuple[Entry, ...]) -> bool:
    """Append what is new, after cutting what conflicts; return whether anything was appended."""
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
    """Refuse a log that conflicts with what is committed here.

    That happens only after an unsafe recovery (`unsafe_recovery.py`), if a lost member is added again with
    its old replica. Of an entry that was collected here only the term of a later one is known, which is not
    below its own.

    Raises:
        Forbidden: `op`, at or below the commit index, is not what is there.
    """
    known = op.term <= log.base.term if op.index < log.base.index else log.holds(op)
    if not known:
        raise Forbidden(
            f"the group has {op} where this replica had committed another entry: it was removed by an unsafe "
            "recovery, and its log has diverged. It does not take part any more: delete it and let the group "
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
    core.needed = message.needed
    if message.closed > core.closed and core.closed_pending is None:
        core.closed_pending = (message.closed, message.commit)
    advance_closed(core)


def advance_closed(core: RaftCore) -> None:
    """Believe a closed time once everything that it speaks of is applied here."""
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
        lost=message.acknowledged and not success and message.term == core.term,
        full=core.full,
    )
    if last is None:
        core.send(reply)
    else:
        core.send(reply, last)


def reject_stale(core: RaftCore, message: AppendEntries) -> None:
    """Tell a leader of an earlier term about ours, so that it steps down."""
    _answer(core, message, success=False, match=0, hint=core.log.last, last=None)


def note_leader(core: RaftCore, message: AppendEntries) -> None:
    """Note that the leader of the present term lives.

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
    core.silent = 0
    core.reset_timer()
    core.round_seen = max(core.round_seen, message.round)
