"""The bytes of the peer port: a 16-byte header and a `PeerFrame`; to and from `PeerBatch`.

Rules: pure. docs/internals/formats-wire.md shows the bytes; only this module packs or unpacks them.
A frame is checked whole (magic, version, length, CRC32C, ranges) before anything of it is used.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum

import google_crc32c
from google.protobuf.message import DecodeError

from nyala.common.errors import BadChecksum, BadVersion, Corrupt
from nyala.common.hybrid_time import MAX_HYBRID_TIME
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.raft.messages import (
    AnyMessage,
    AppendEntries,
    AppendReply,
    Entry,
    EntryKind,
    FetchSuffix,
    PeerBatch,
    RequestVote,
    Suffix,
    TimeoutNow,
    VoteReply,
)
from nyala.wire.proto.nyala_pb2 import PeerFrame, RaftEntry, RaftMessage

MAGIC = b"NYPF"
VERSION = 1
HEADER = struct.Struct("<4sBBHII")  # magic, version, kind, reserved, payload bytes, CRC32C
MAX_NUMBER = 1 << 62
"""Largest term, index or round of a message; a higher term would leave too few for elections to come."""
_COVERED = HEADER.size - 4
"""The CRC covers the header up to itself, then the payload."""


class FrameKind(IntEnum):
    """HELLO opens a connection and names both ends; BATCH carries messages."""

    HELLO = 1
    BATCH = 2


class _Kind(IntEnum):
    APPEND_ENTRIES = 1
    APPEND_REPLY = 2
    REQUEST_VOTE = 3
    VOTE_REPLY = 4
    TIMEOUT_NOW = 5
    FETCH_SUFFIX = 6
    SUFFIX = 7


@dataclass(frozen=True, slots=True)
class Frame:
    """One decoded frame.

    Attributes:
        kind: what it is for.
        cluster_id: of the sender; empty while it does not know it.
        batch: the messages; none in a HELLO.
    """

    kind: FrameKind
    cluster_id: str
    batch: PeerBatch


def encode_frame(batch: PeerBatch, cluster_id: str, kind: FrameKind = FrameKind.BATCH) -> bytes:
    """Return the bytes of a frame."""
    payload = PeerFrame(
        sender=batch.sender,
        to=batch.to,
        hlc=batch.hlc,
        messages=[_message(group, message) for group, message in batch.messages],
        cluster_id=cluster_id,
        wall_us=batch.wall_us,
        incarnation=batch.incarnation,
        epoch=batch.epoch,
        left=batch.left,
    ).SerializeToString()
    header = HEADER.pack(MAGIC, VERSION, kind, 0, len(payload), 0)[:_COVERED]
    crc = google_crc32c.extend(google_crc32c.value(header), payload)
    return b"".join((header, crc.to_bytes(4, "little"), payload))


def payload_bytes(header: bytes | bytearray | memoryview, max_bytes: int) -> int:
    """Return how many bytes follow a frame's header.

    Raises:
        Corrupt: not a frame's header, or a length over the limit.
        BadVersion: a frame of a version that this build does not know.
    """
    magic, version, _, _, length, _ = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise Corrupt(f"the peer port received bytes that are no frame: they begin with {magic!r}")
    if version != VERSION:
        raise BadVersion(f"a frame of version {version}; this build knows {VERSION}")
    if length > max_bytes:
        raise Corrupt(
            f"a frame claims {length} bytes; the limit is {max_bytes}", {"why": "oversized"}
        )
    return int(length)


def decode_frame(raw: bytes) -> Frame:
    """Return the frame in `raw`, which is one header and its payload, exactly.

    Raises:
        Corrupt: damaged or malformed; the message says where. BadChecksum and BadVersion are its kinds.
    """
    if len(raw) < HEADER.size:
        raise Corrupt(f"a frame of {len(raw)} bytes is shorter than its header")
    length = payload_bytes(raw, len(raw))
    _, _, kind, _, _, crc = HEADER.unpack_from(raw)
    payload = raw[HEADER.size :]
    if length != len(payload):
        raise Corrupt(f"a frame claims {length} bytes and has {len(payload)}")
    if google_crc32c.extend(google_crc32c.value(raw[:_COVERED]), payload) != crc:
        raise BadChecksum(f"a frame of {len(raw)} bytes fails its checksum")
    try:
        frame = PeerFrame.FromString(payload)
        sender, to = ServerUuid(frame.sender), ServerUuid(frame.to)
        for message in frame.messages:
            _check_numbers(message)
        messages = tuple((TabletId(m.group), _parse(m, sender, to)) for m in frame.messages)
        batch = PeerBatch(
            sender, to, _stamp(frame.hlc), messages, frame.wall_us, frame.incarnation, frame.epoch,
            tuple(TabletId(g) for g in frame.left),
        )  # fmt: skip
        return Frame(FrameKind(kind), frame.cluster_id, batch)
    except (DecodeError, ValueError) as err:
        raise Corrupt(f"a frame's payload is malformed: {err}") from err


def _message(group: TabletId, message: AnyMessage) -> RaftMessage:
    out = RaftMessage(group=group, term=message.term, hlc=message.hlc)
    op = None
    match message:
        case AppendEntries():
            out.kind = _Kind.APPEND_ENTRIES
            op = message.previous
            out.entries.extend(_entry(e) for e in message.entries)
            out.commit, out.round, out.closed = message.commit, message.round, message.closed
            out.needed, out.quiesce = message.needed, message.quiesce
        case AppendReply():
            out.kind = _Kind.APPEND_REPLY
            op = message.hint
            out.flag, out.match, out.round = message.success, message.match, message.round
            out.quiesce = message.quiesce
        case RequestVote():
            out.kind = _Kind.REQUEST_VOTE
            op = message.last
            out.pre, out.override = message.pre, message.override
        case VoteReply():
            out.kind = _Kind.VOTE_REPLY
            op = message.last
            out.flag, out.pre, out.lends = message.granted, message.pre, message.lends
        case TimeoutNow():
            out.kind = _Kind.TIMEOUT_NOW
        case FetchSuffix():
            out.kind = _Kind.FETCH_SUFFIX
            op = message.last
        case Suffix():
            out.kind = _Kind.SUFFIX
            op = message.previous
            out.entries.extend(_entry(e) for e in message.entries)
            out.last_term, out.last_index = message.last.term, message.last.index
    if op is not None:
        out.op_term, out.op_index = op.term, op.index
    return out


def _parse(m: RaftMessage, sender: ServerUuid, to: ServerUuid) -> AnyMessage:
    op = OpId(m.op_term, m.op_index)
    hlc = _stamp(m.hlc)
    match _Kind(m.kind):
        case _Kind.APPEND_ENTRIES:
            entries = tuple(_parse_entry(e) for e in m.entries)
            return AppendEntries(
                sender=sender, to=to, term=m.term, hlc=hlc, previous=op, entries=entries,
                commit=m.commit, round=m.round, closed=_stamp(m.closed), needed=m.needed,
                quiesce=m.quiesce,
            )  # fmt: skip
        case _Kind.APPEND_REPLY:
            return AppendReply(
                sender=sender, to=to, term=m.term, hlc=hlc,
                success=m.flag, match=m.match, hint=op, round=m.round, quiesce=m.quiesce,
            )  # fmt: skip
        case _Kind.REQUEST_VOTE:
            return RequestVote(
                sender=sender, to=to, term=m.term, hlc=hlc,
                last=op, pre=m.pre, override=m.override,
            )  # fmt: skip
        case _Kind.VOTE_REPLY:
            return VoteReply(
                sender=sender, to=to, term=m.term, hlc=hlc,
                granted=m.flag, pre=m.pre, last=op, lends=m.lends,
            )  # fmt: skip
        case _Kind.TIMEOUT_NOW:
            return TimeoutNow(sender=sender, to=to, term=m.term, hlc=hlc)
        case _Kind.FETCH_SUFFIX:
            return FetchSuffix(sender=sender, to=to, term=m.term, hlc=hlc, last=op)
        case _Kind.SUFFIX:
            return Suffix(
                sender=sender, to=to, term=m.term, hlc=hlc, previous=op,
                entries=tuple(_parse_entry(e) for e in m.entries),
                last=OpId(m.last_term, m.last_index),
            )  # fmt: skip


def _entry(entry: Entry) -> RaftEntry:
    return RaftEntry(
        term=entry.id.term,
        index=entry.id.index,
        stamp=entry.stamp,
        kind=entry.kind,
        payload=entry.payload,
    )


def _check_numbers(m: RaftMessage) -> None:
    """Refuse what no group reaches in its life: a term that would use all terms up, an index below zero."""
    largest = max(
        m.term,
        m.op_term,
        m.op_index,
        m.commit,
        m.match,
        m.needed,
        m.round,
        m.last_term,
        m.last_index,
    )
    for entry in m.entries:
        largest = max(largest, entry.term, entry.index)
    if largest > MAX_NUMBER:
        raise Corrupt(
            f"a message of {m.group} has {largest} for a term or an index; {MAX_NUMBER} is the most",
            {"why": "number"},
        )


def _parse_entry(e: RaftEntry) -> Entry:
    return Entry(OpId(e.term, e.index), _stamp(e.stamp), EntryKind(e.kind), e.payload)


def _stamp(value: int) -> int:
    if value > MAX_HYBRID_TIME:
        raise ValueError(f"{value} is beyond the largest hybrid time")
    return value
