"""Log entries and messages, with the dissertation's names; `wire/raft_bytes.py` encodes them.

Every message carries `term` (of the sender) and `hlc` (the sender's hybrid clock when the message was
made). A field that a kind does not use stays at its default.
"""

from enum import IntEnum

import msgspec

from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId


class EntryKind(IntEnum):
    """Kind of an entry."""

    NOOP = 0
    CONFIG = 1
    OPERATION = 2


class Entry(msgspec.Struct, frozen=True):
    """One log entry.

    Attributes:
        id: (term, index).
        stamp: hybrid time, greater than that of the previous entry.
        kind: how the core treats it.
        payload: CONFIG: `membership.encode(...)`; OPERATION: opaque; NOOP: empty.
    """

    id: OpId
    stamp: int
    kind: EntryKind
    payload: bytes = b""


class HardState(msgspec.Struct, frozen=True):
    """Term and vote, durable before a message that depends on them is sent (dissertation figure 3.1)."""

    term: int = 0
    vote: ServerUuid | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages between members of one group."""

    sender: ServerUuid
    to: ServerUuid
    term: int
    hlc: int = 0


class AppendEntries(Message, frozen=True, kw_only=True):
    """Replicates entries after `previous`; without entries it is a heartbeat.

    Attributes:
        previous: op id of the entry before `entries`.
        entries: contiguous.
        commit: the leader's commit index.
        round: read-index round that a reply confirms (dissertation 6.4).
        closed: hybrid time at or below which the leader assigns no further timestamps; 0: none.
        retain_index: lowest index that some member may still have to be sent, so the next leader must have
            it; 0: unknown.
        quiesce: offer to quiesce (`quiescence.py`).
        acknowledged: the receiver has acknowledged `previous` in this term, so it must have it.
    """

    previous: OpId = NO_OP
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    round: int = 0
    closed: int = 0
    retain_index: int = 0
    quiesce: bool = False
    acknowledged: bool = False


class AppendReply(Message, frozen=True, kw_only=True):
    """Reply to AppendEntries.

    Attributes:
        success: the logs agree up to `hint`.
        match: last index that agrees with the leader's log and is durable here; 0 unless `success`.
        hint: on success the last op id that agrees, perhaps not durable; on refusal the follower's last op id
            at or below `previous.index` whose term is not above `previous.term`.
        round: highest round received from this leader in this term.
        quiesce: the sender is quiesced now.
        lost_entries: refused although `previous` was acknowledged: this log has lost it since.
        out_of_memory: entries are discarded because there is no memory for them now; heartbeats are answered.
        promise_ms: time from the receipt of the message, in milliseconds, for which the sender takes part in
            no election (`reads.py`); 0: none is promised.
    """

    success: bool
    match: int = 0
    hint: OpId = NO_OP
    round: int = 0
    quiesce: bool = False
    lost_entries: bool = False
    out_of_memory: bool = False
    promise_ms: int = 0


class RequestVote(Message, frozen=True, kw_only=True):
    """Requests a vote; with `pre` a pre-vote (dissertation 9.6).

    Attributes:
        last: op id of the candidate's last entry.
        pre: only ask whether the vote would be granted.
        override: ignore leader stickiness: the leader itself ordered the election (leadership transfer).
    """

    last: OpId
    pre: bool = False
    override: bool = False


class VoteReply(Message, frozen=True, kw_only=True):
    """Reply to RequestVote. In a granted pre-vote `term` is the requested term.

    Attributes:
        granted: the vote is granted.
        pre: a pre-vote.
        last: op id of the voter's last entry.
        offers_suffix: refused by a witness whose log, up to `last`, is longer; the candidate may fetch the
            entries.
    """

    granted: bool
    pre: bool = False
    last: OpId = NO_OP
    offers_suffix: bool = False


class TimeoutNow(Message, frozen=True, kw_only=True):
    """Orders the receiver to start an election at once (dissertation 3.10)."""


class FetchSuffix(Message, frozen=True, kw_only=True):
    """Requests the entries after `last` from a witness (`witness.py`)."""

    last: OpId


class Suffix(Message, frozen=True, kw_only=True):
    """Entries of a witness after `previous`, perhaps not all of them; its log ends at `last`."""

    previous: OpId
    entries: tuple[Entry, ...] = ()
    last: OpId = NO_OP


AnyMessage = (
    AppendEntries | AppendReply | RequestVote | VoteReply | TimeoutNow | FetchSuffix | Suffix
)


class PeerBatch(msgspec.Struct, frozen=True):
    """Messages of many groups from one server to another, with the sender's hybrid time.

    A batch without messages is a keep-alive (`quiescence.py`).

    Attributes:
        sender: uuid of the sending server.
        to: uuid of the receiving server.
        hlc: the sender's hybrid time.
        messages: group and message.
        wall_us: the sender's wall clock in microseconds, for comparison only; 0: not sent.
        incarnation: grows with each start of the sender; 0: it confirms no quiesced groups.
        stopped_count: number of the sender's replicas that have stopped in this incarnation; it no longer
            confirms them as quiesced.
        stopped_groups: groups of the last of them, newest last.
        log_ms: latency of a round of the sender's log, in milliseconds; 0: unknown.
        address: the sender's peer address, for receivers whose configuration does not name it yet; empty: not
            sent.
    """

    sender: ServerUuid
    to: ServerUuid
    hlc: int
    messages: tuple[tuple[TabletId, AnyMessage], ...]
    wall_us: int = 0
    incarnation: int = 0
    stopped_count: int = 0
    stopped_groups: tuple[TabletId, ...] = ()
    log_ms: int = 0
    address: str = ""


class DurablePoint(msgspec.Struct, frozen=True):
    """Point up to which the log must be durable: a version of the hard state, and the last entry.

    A truncation counts as a new version (the hard state is written again with the replacing entries), so
    within one version the log only grows and an index identifies its end.
    """

    hard_state_version: int = 0
    last: OpId = NO_OP

    def covers(self, needed: "DurablePoint") -> bool:
        """Return whether a message that waits for `needed` may be sent when this much is durable.

        The host compares with the point of the last batch that became durable; batches become durable in the
        order in which they were made, so a later version implies everything of an earlier one.
        """
        if self.hard_state_version != needed.hard_state_version:
            return self.hard_state_version > needed.hard_state_version
        return self.last.index >= needed.last.index
