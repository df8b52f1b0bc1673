"""Encoding of Raft messages within a frame of the peer port; hand-written, as they are most of the traffic.

No I/O. docs/internals/formats-wire.md describes the bytes; only this module encodes and decodes them. All
kinds of messages have the same fixed part; unused fields are 0. Decoding validates kinds, flags and numbers;
the caller detects truncation by the returned position.
"""

import struct
from enum import IntEnum, IntFlag

from nyala.common.errors import Corrupt
from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.common.ids import NO_OP, OpId, ServerUuid, TabletId
from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    FetchSuffix,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)

MAX_NUMBER = 1 << 62
"""Maximum term, index or round of a message; a higher term would leave too few terms for later elections."""
_MESSAGE = struct.Struct("<BBBxI8Q")
"""Kind, flags, length of the group id, number of entries; term, hlc, op id (term, index), four numbers."""
_ENTRY = struct.Struct("<3QIB")
"""Term, index, timestamp, length of the payload, kind."""
_ENTRY_KINDS = {int(k): k for k in EntryKind}


class _Kind(IntEnum):
    APPEND_ENTRIES = 1
    APPEND_REPLY = 2
    REQUEST_VOTE = 3
    VOTE_REPLY = 4
    TIMEOUT_NOW = 5
    FETCH_SUFFIX = 6
    SUFFIX = 7


class _Flag(IntFlag):
    YES = 1
    PRE = 2
    OVERRIDE = 4
    QUIESCE = 8
    OFFERS_SUFFIX = 16


# Plain numbers: arithmetic on members of an enumeration would dominate the cost here.
_YES, _PRE, _OVERRIDE, _QUIESCE, _OFFERS_SUFFIX = (int(f) for f in _Flag)
_APPEND, _REPLY, _SUFFIX = int(_Kind.APPEND_ENTRIES), int(_Kind.APPEND_REPLY), int(_Kind.SUFFIX)
_MAX_FLAGS = 2 * _OFFERS_SUFFIX - 1
_OF_APPEND = _PRE
"""Flag: `acknowledged` of AppendEntries, `lost_entries` of its response. Older builds ignore it."""


def pack(parts: list[bytes], group: TabletId, message: AnyMessage) -> None:
    """Append the encoded message to `parts`.

    Args:
        parts: appended to.
        group: id of the Raft group.
        message: the message.
    """
    flags, op, numbers = 0, NO_OP, (0, 0, 0, 0)
    entries: tuple[Entry, ...] = ()
    match message:
        case AppendEntries():
            kind, op, entries = _APPEND, message.previous, message.entries
            flags = (_QUIESCE if message.quiesce else 0) | (
                _OF_APPEND if message.acknowledged else 0
            )
            numbers = (message.commit, message.round, message.closed, message.retain_index)
        case AppendReply():
            kind, op = _REPLY, message.hint
            flags = (
                (_YES if message.success else 0)
                | (_QUIESCE if message.quiesce else 0)
                | (_OF_APPEND if message.lost_entries else 0)
            )
            numbers = (message.match, message.round, message.promise_ms, int(message.out_of_memory))
        case RequestVote():
            kind, op = int(_Kind.REQUEST_VOTE), message.last
            flags = _PRE * message.pre | _OVERRIDE * message.override
        case VoteReply():
            kind, op = int(_Kind.VOTE_REPLY), message.last
            flags = (
                _YES * message.granted | _PRE * message.pre | _OFFERS_SUFFIX * message.offers_suffix
            )
        case TimeoutNow():
            kind = int(_Kind.TIMEOUT_NOW)
        case FetchSuffix():
            kind, op = int(_Kind.FETCH_SUFFIX), message.last
        case Suffix():
            kind, op, entries = _SUFFIX, message.previous, message.entries
            numbers = (message.last.term, message.last.index, 0, 0)
    name = group.encode()
    parts += (
        _MESSAGE.pack(
            kind, flags, len(name), len(entries), message.term, message.hlc, op.term, op.index,
            *numbers,
        ),
        name,
    )  # fmt: skip
    for entry in entries:
        payload = entry.payload
        parts += (
            _ENTRY.pack(entry.id.term, entry.id.index, entry.stamp, len(payload), entry.kind),
            payload,
        )


def unpack(
    raw: bytes | memoryview, at: int, sender: ServerUuid, to: ServerUuid
) -> tuple[TabletId, AnyMessage, int]:
    """Decode the group and the message at a position; also returns the position of the next message.

    If that position is behind the end of the bytes, they were truncated and the result is meaningless.

    Args:
        raw: received bytes.
        at: position in `raw`.
        sender: uuid of the sending server.
        to: uuid of the receiving server.

    Raises:
        Corrupt: a number above `MAX_NUMBER`.
        ValueError, struct.error: malformed.
    """
    kind, flags, name, count, term, hlc, op_term, op_index, *numbers = _MESSAGE.unpack_from(raw, at)
    at += _MESSAGE.size + name
    group = TabletId(str(raw[at - name : at], "utf-8"))
    if flags > _MAX_FLAGS or (count and kind not in (_APPEND, _SUFFIX)):
        raise ValueError(f"a message of kind {kind} with flags {flags} and {count} entries")
    entries, at, largest = _entries(raw, at, count)
    first, second, third, fourth = numbers
    closed = _stamp(third) if kind == _APPEND else 0
    largest = max(largest, term, op_term, op_index, first, second, fourth)
    if largest > MAX_NUMBER:
        raise Corrupt(
            f"a message of {group} has {largest} for a term or an index; the maximum is {MAX_NUMBER}",
            {"why": "number"},
        )
    op = OpId(op_term, op_index)
    message: AnyMessage
    if kind == _APPEND:
        message = AppendEntries(
            sender=sender, to=to, term=term, hlc=hlc, previous=op, entries=entries, commit=first,
            round=second, closed=closed, retain_index=fourth, quiesce=bool(flags & _QUIESCE),
            acknowledged=bool(flags & _OF_APPEND),
        )  # fmt: skip
    elif kind == _REPLY:
        message = AppendReply(
            sender=sender, to=to, term=term, hlc=hlc, success=bool(flags & _YES), match=first,
            hint=op, round=second, quiesce=bool(flags & _QUIESCE), lost_entries=bool(flags & _OF_APPEND),
            out_of_memory=bool(fourth), promise_ms=third,
        )  # fmt: skip
    elif kind == _SUFFIX:
        message = Suffix(
            sender=sender, to=to, term=term, hlc=hlc, previous=op, entries=entries,
            last=OpId(first, second),
        )  # fmt: skip
    else:
        message = _election_message(_Kind(kind), sender, to, term, hlc, op, flags)
    return group, message, at


def _election_message(
    kind: _Kind, sender: ServerUuid, to: ServerUuid, term: int, hlc: int, op: OpId, flags: int
) -> AnyMessage:
    """Return an election message."""
    if kind is _Kind.REQUEST_VOTE:
        return RequestVote(
            sender=sender, to=to, term=term, hlc=hlc, last=op, pre=bool(flags & _PRE),
            override=bool(flags & _OVERRIDE),
        )  # fmt: skip
    if kind is _Kind.VOTE_REPLY:
        return VoteReply(
            sender=sender, to=to, term=term, hlc=hlc, granted=bool(flags & _YES),
            pre=bool(flags & _PRE), last=op, offers_suffix=bool(flags & _OFFERS_SUFFIX),
        )  # fmt: skip
    if kind is _Kind.TIMEOUT_NOW:
        return TimeoutNow(sender=sender, to=to, term=term, hlc=hlc)
    return FetchSuffix(sender=sender, to=to, term=term, hlc=hlc, last=op)


def _entries(raw: bytes | memoryview, at: int, count: int) -> tuple[tuple[Entry, ...], int, int]:
    """Return the entries at a position, the position after them, and their largest term or index."""
    largest = 0
    found = []
    for _ in range(count):
        term, index, stamp, size, kind = _ENTRY.unpack_from(raw, at)
        at += _ENTRY.size + size
        if kind not in _ENTRY_KINDS:
            raise ValueError(f"an entry of kind {kind}")
        largest = max(largest, term, index)
        op = OpId(term, index)
        found.append(Entry(op, _stamp(stamp), _ENTRY_KINDS[kind], bytes(raw[at - size : at])))
    return tuple(found), at, largest


def _stamp(value: int) -> int:
    if value > MAX_HYBRID_TIME:
        raise ValueError(f"{value} is beyond the largest hybrid time")
    return value
