"""Entries and messages, by the dissertation's names. Frozen values; the wire form is `wire/raft_bytes.py`.

Every message carries `term` (of the sender) and `hlc` (the sender's hybrid clock when the message was
made). A field that a kind does not use stays at its default.
"""

from enum import IntEnum

import msgspec

from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId


class EntryKind(IntEnum):
    """Kind of an entry; the payload of an OPERATION is opaque to the core."""

    NOOP = 0
    CONFIG = 1
    OPERATION = 2


class Entry(msgspec.Struct, frozen=True):
    """One log entry.

    Attributes:
        id: (term, index).
        stamp: hybrid time; strictly above the stamp of the entry before it.
        kind: what it means to the core.
        payload: CONFIG: `membership.encode(...)`; OPERATION: opaque; NOOP: empty.
    """

    id: OpId
    stamp: int
    kind: EntryKind
    payload: bytes = b""


class HardState(msgspec.Struct, frozen=True):
    """Term and vote: durable before a message that asserts them is sent (dissertation figure 3.1)."""

    term: int = 0
    vote: ServerUuid | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages between members of one group."""

    sender: ServerUuid
    to: ServerUuid
    term: int
    hlc: int = 0


class AppendEntries(Message, frozen=True, kw_only=True):
    """Replicate entries after `previous`; without entries it is a heartbeat.

    `round` numbers the read-index round (dissertation 6.4) that this message asks to confirm.
    `closed` is the hybrid time below which the leader promises no further stamps (0: none).
    `needed` is the lowest index that some member may still have to be sent (0: not known): whoever
    leads next must still have it. `quiesce` asks the follower to fall asleep (`quiescence.py`).
    `acknowledged`: the receiver has acknowledged `previous` in this term, so it must have it.
    """

    previous: OpId = NO_OP
    entries: tuple[Entry, ...] = ()
    commit: int = 0
    round: int = 0
    closed: int = 0
    needed: int = 0
    quiesce: bool = False
    acknowledged: bool = False


class AppendReply(Message, frozen=True, kw_only=True):
    """Answer to AppendEntries.

    `match` is the last index known to agree with the leader's log *and durable here*, when `success`;
    `hint` is then the last op id that agrees, received though perhaps not durable.
    On refusal `hint` is the follower's last op id at or below `previous.index` whose term is not above
    `previous.term` (conflict search).
    `round` echoes the highest round seen from this leader in this term. `quiesce`: asleep from now on.
    `lost`: refused, though `previous` was acknowledged: this log lost it since.
    `full`: entries were let go, or would be, since there is no room for them now; heartbeats are answered.
    """

    success: bool
    match: int = 0
    hint: OpId = NO_OP
    round: int = 0
    quiesce: bool = False
    lost: bool = False
    full: bool = False


class RequestVote(Message, frozen=True, kw_only=True):
    """Ask for a vote; `pre` asks only whether it would be given (dissertation 9.6).

    `term` is the term that would be entered. `override` bypasses leader stickiness: set only in an
    election that the leader itself ordered (leadership transfer).
    """

    last: OpId
    pre: bool = False
    override: bool = False


class VoteReply(Message, frozen=True, kw_only=True):
    """Answer to RequestVote. For a granted pre-vote `term` is the asked-for term.

    `offers_suffix`: the voter is a witness whose log ends at `last`, past the candidate's; the candidate may
    fetch the missing entries from it.
    """

    granted: bool
    pre: bool = False
    last: OpId = NO_OP
    offers_suffix: bool = False


class TimeoutNow(Message, frozen=True, kw_only=True):
    """The leader orders the receiver to stand for election at once (dissertation 3.10)."""


class FetchSuffix(Message, frozen=True, kw_only=True):
    """Ask a lender for the entries after `last`, of which both logs are thought to have it (`witness.py`)."""

    last: OpId


class Suffix(Message, frozen=True, kw_only=True):
    """Entries lent: those after `previous` in a log that ends at `last`, perhaps not all of them."""

    previous: OpId
    entries: tuple[Entry, ...] = ()
    last: OpId = NO_OP


AnyMessage = (
    AppendEntries | AppendReply | RequestVote | VoteReply | TimeoutNow | FetchSuffix | Suffix
)


class PeerBatch(msgspec.Struct, frozen=True):
    """Messages of many groups that one server sends another together, with the sender's HLC.

    `wall_us` is the sender's wall clock (0: not told): clocks are compared by it, never set.
    `incarnation` grows with each start of the sender (0: it vouches for nothing); `epoch` counts the groups
    that it has ceased to vouch for in this incarnation, and `left` names the last of them, newest last.
    `log_ms` is how long a round of the sender's log takes (0: not known). `address` is the sender's peer
    address (empty: not told): a receiver whose configuration does not have the sender yet answers there.
    A batch without messages says only that the sender lives (`quiescence.py`).
    """

    sender: ServerUuid
    to: ServerUuid
    hlc: int
    messages: tuple[tuple[TabletId, AnyMessage], ...]
    wall_us: int = 0
    incarnation: int = 0
    epoch: int = 0
    left: tuple[TabletId, ...] = ()
    log_ms: int = 0
    address: str = ""


class DurablePoint(msgspec.Struct, frozen=True):
    """Point that is to be durable: the version-th hard state of this run, and the log up to `last`.

    A truncation counts as a new version (the hard state is written again beside the replacing
    entries), so that within one version the log only grows and an index says everything.
    """

    hard_state_version: int = 0
    last: OpId = NO_OP

    def covers(self, needed: "DurablePoint") -> bool:
        """Return whether what waits for `needed` may leave when this much is durable.

        The host compares with the point of the last batch that became durable; batches become durable
        in the order in which they were made, so a later version implies all of an earlier one.
        """
        if self.hard_state_version != needed.hard_state_version:
            return self.hard_state_version > needed.hard_state_version
        return self.last.index >= needed.last.index
