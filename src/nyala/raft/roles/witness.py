"""Log suffixes that a witness, which cannot lead, sends to a candidate that lacks them.

A leader and a witness commit an entry, and the leader fails. The witness never campaigns, and may not vote
for a log that is older than its own: the other members could never elect a leader. So its refusal of a
pre-vote offers the missing entries; the candidate fetches them and campaigns again.

Fetched entries count towards no commit: they say nothing about the log of the term's leader. They are taken
only from a log that is newer than the own one, after an entry that both have, so no committed entry is lost:
a newer log was made by leaders that had every committed entry.
"""

from collections.abc import Sequence

from nyala.common.errors import Corrupt
from nyala.common.ids import OpId, ServerUuid
from nyala.raft.messages import Entry, FetchSuffix, Suffix, VoteReply
from nyala.raft.ready import ReadRequest
from nyala.raft.roles import election, follower
from nyala.raft.state import RaftCore, RaftState


def on_refusal(core: RaftCore, message: VoteReply) -> None:
    """Fetch the missing entries from a witness that refused its vote and offers them."""
    if message.pre and message.offers_suffix and message.last > core.log.last and _wants(core):
        _fetch(core, message.sender, core.log.last)


def _wants(core: RaftCore) -> bool:
    """Return whether there is no leader, and this member may campaign now."""
    idle = core.state in (RaftState.FOLLOWER, RaftState.PRE_CANDIDATE) and not core.promise_ticks
    return idle and core.leader is None and core.may_campaign


def _fetch(core: RaftCore, lender: ServerUuid, last: OpId) -> None:
    core.send(FetchSuffix(sender=core.uuid, to=lender, term=core.term, hlc=core.hlc, last=last))


def check(message: Suffix) -> None:
    """Reject an inconsistent suffix before it changes anything.

    Raises:
        Corrupt: as `follower.check`, or it goes beyond the end of its sender's log.
    """
    end, last = message.entries[-1].id if message.entries else message.previous, message.last
    if end > last or (end.index >= last.index and end != last) or last.term > message.term:
        raise Corrupt(
            f"a suffix from {message.sender} in term {message.term} ends at {end}, and its log at "
            f"{last}; it was dropped"
        )
    follower.check(message)


def on_suffix(core: RaftCore, message: Suffix) -> None:
    """Append entries of a newer log, and campaign again when none are missing."""
    log, previous = core.log, message.previous
    if not _wants(core) or message.last <= log.last or previous.index < log.committed:
        return  # late, or it conflicts with committed entries and is not the newest log
    if not log.holds(previous):
        hint = log.at_or_below(previous.index, previous.term)
        if hint.index >= log.committed:
            _fetch(core, message.sender, hint)
        return
    _become_leaderless(core, message)
    core.reset_timer()
    if not follower.merge(core, message.entries):
        return  # a duplicate
    if log.last < message.last:
        _fetch(core, message.sender, log.last)
    elif core.may_campaign:
        election.campaign(core, pre=True)


def _become_leaderless(core: RaftCore, message: Suffix) -> None:
    """Become follower without a leader, in the witness's term or a later one.

    The next term is entered if entries are truncated that agreed with this term's leader.
    """
    log, term = core.log, max(core.term, message.term)
    truncated = next(
        (e.id for e in message.entries if e.id.index <= log.last.index and not log.holds(e.id)),
        None,
    )
    if truncated is not None and truncated.index <= core.verified:
        term = max(core.term + 1, term)
    core.become_follower(term, None)


# ---- the witness --------------------------------------------------------------------------------------


def on_fetch(core: RaftCore, message: FetchSuffix) -> None:
    """Send the entries after the last one that both logs may have, up to the size of a message."""
    log = core.log
    if not election.offers_suffix(core, message.last) or message.last.index < log.base.index:
        return
    first = log.at_or_below(message.last.index, message.last.term).index + 1
    limit = core.options.max_append_bytes
    entries = log.slice(first, limit)
    if entries is None:
        core.suffix_candidate = message.sender
        core.out.read.append(ReadRequest(message.sender, first, limit))
    else:
        _send(core, message.sender, entries)


def entries_read(core: RaftCore, candidate: ServerUuid, entries: Sequence[Entry]) -> None:
    """Send a candidate the entries that the host read from the log; see `RaftNode.entries_read`.

    Args:
        core: Raft state of the witness.
        candidate: candidate that fetches the suffix.
        entries: empty: the log no longer holds them.
    """
    if core.suffix_candidate == candidate and entries and not core.may_campaign:
        _send(core, candidate, entries)
    core.suffix_candidate = None


def _send(core: RaftCore, candidate: ServerUuid, entries: Sequence[Entry]) -> None:
    for entry in entries:
        assert core.log.holds(entry.id), f"{entry.id} is to be sent but is not in {core.log!r}"
    core.send(
        Suffix(
            sender=core.uuid,
            to=candidate,
            term=core.term,
            hlc=core.hlc,
            previous=core.log.op_id(entries[0].id.index - 1),
            entries=tuple(entries),
            last=core.log.last,
        )
    )
