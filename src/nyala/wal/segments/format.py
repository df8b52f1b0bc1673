"""Encoding of a log segment: header, records, footer, trailer (docs/internals/formats-wal.md).

Only this module packs or unpacks these bytes. A record stores its own position (sequence, offset), so that
bytes of another segment, or of a log within a payload, are never taken for a record. Its header has a
checksum of its own, so that the group is known even if the payload is damaged.
"""

from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import google_crc32c

from nyala.common.errors import BadChecksum, InvalidArgument, TooLarge, newer_version
from nyala.common.ids import OpId, TabletId
from nyala.raft.messages import Entry, EntryKind, HardState

VERSION = 2
READABLE = (1, 2)
"""Readable format versions. 1: as 2, without MOVED records."""
SEGMENT_MAGIC = b"NYALAWAL"
RECORD_MAGIC = b"\xd7wRe"
TRAILER_MAGIC = b"NYALAEND"
MAX_PAYLOAD_BYTES = 256 << 20
"""Maximum payload of a record in bytes; the largest write is 16 MiB, so a greater length is damage."""

_SEGMENT = Struct("<8sII16sQII")
_PREFIX = Struct("<4sI")
_BODY = Struct("<IIIIII16sQQQBBHI")
_FOOTER = Struct("<QII")
_ROW = Struct("<16sQQII")
_TRAILER = Struct("<III8s")
SEGMENT_HEADER_BYTES = _SEGMENT.size
RECORD_HEADER_BYTES = _PREFIX.size + _BODY.size
ROW_BYTES = _ROW.size
TRAILER_BYTES = _TRAILER.size
NO_GROUP = bytes(16)

crc32c = google_crc32c.value


class RecordKind(IntEnum):
    """Kind of a record."""

    ENTRY = 1
    HARD_STATE = 2
    MARKER = 3
    FORGET = 4
    FOOTER = 5
    MOVED = 6


_KINDS = {int(k): k for k in RecordKind}
BEGINS, TAIL = 1, 2
"""Flags of MOVED records."""
ENTRIES = (RecordKind.ENTRY, RecordKind.MOVED)
"""Records that hold an entry."""
_ENTRY_KINDS = {int(k): k for k in EntryKind}


class LogPosition(NamedTuple):
    """Position in the log; ordered."""

    sequence: int
    offset: int


class RecordDraft(NamedTuple):
    """A record without a position: the part that is computed before the appender takes it.

    Attributes:
        rest: in a MOVED record, number of records of its run that follow.
        flags: flags of a MOVED record: BEGINS, TAIL.
    """

    kind: RecordKind
    group: bytes
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    stamp: int
    entry_kind: int
    payload: bytes
    payload_crc: int
    rest: int = 0
    flags: int = 0


class Record(NamedTuple):
    """A record with a valid header; `payload` is None if its checksum is wrong."""

    kind: RecordKind
    group: bytes
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    stamp: int
    entry_kind: int
    offset: int
    length: int
    synced: LogPosition
    payload: bytes | None
    rest: int = 0
    flags: int = 0

    @property
    def begins(self) -> bool:
        """True if a MOVED record is the first of its run."""
        return bool(self.flags & BEGINS)

    @property
    def tail(self) -> bool:
        """True if the run of a MOVED record ended at the group's last entry."""
        return bool(self.flags & TAIL)


class IndexRow(NamedTuple):
    """One row of a footer's index; index 0: a record that is not an entry."""

    group: bytes
    term: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    offset: int
    length: int


@lru_cache(maxsize=16_384)
def group_bytes(group: str) -> bytes:
    """Return the 16 bytes of a 32-hex-digit id.

    Raises:
        InvalidArgument: it is not such an id.
    """
    try:
        raw = bytes.fromhex(group)
    except ValueError:
        raw = b""
    if len(raw) != 16 or raw.hex() != group:
        raise InvalidArgument(f"{group!r} is not an id of 32 lower-case hex digits")
    return raw


def pack_segment_header(server_uuid: str, sequence: int) -> bytes:
    """Return the header of a segment."""
    head: bytes = _SEGMENT.pack(
        SEGMENT_MAGIC, VERSION, 0, group_bytes(server_uuid), sequence, 0, 0
    )[:-4]
    return head + int(crc32c(head)).to_bytes(4, "little")


def unpack_segment_header(data: bytes, path: str) -> tuple[str, int]:
    """Return (server uuid, sequence).

    Raises:
        BadChecksum: it is truncated, or magic or checksum are wrong.
        BadVersion: valid, but of an unknown format version.
    """
    head = data[:SEGMENT_HEADER_BYTES]
    if len(head) == SEGMENT_HEADER_BYTES:
        magic, version, _, uuid, sequence, _, crc = _SEGMENT.unpack(head)
        if magic == SEGMENT_MAGIC and crc == crc32c(head[:-4]):
            if version not in READABLE:
                raise newer_version(f"log segment {path}", version, VERSION)
            return uuid.hex(), sequence
    raise BadChecksum(f"{path}: the segment header is damaged", {"path": path, "offset": "0"})


def draft(kind: RecordKind, group: bytes, payload: bytes = b"", term: int = 0) -> RecordDraft:
    """Return a draft of a record that is not an entry.

    Args:
        kind: kind of the record.
        group: 16 bytes; `NO_GROUP`: of no group.
        payload: payload of the record.
        term: HARD_STATE: the term.
    """
    return RecordDraft(kind, group, term, 0, 0, 0, payload, crc32c(payload))


def draft_entry(group: bytes, entry: Entry) -> RecordDraft:
    """Return the draft of a Raft entry."""
    op, payload = entry.id, entry.payload
    return RecordDraft(
        RecordKind.ENTRY,
        group,
        op.term,
        op.index,
        entry.stamp,
        entry.kind,
        payload,
        crc32c(payload),
    )


def draft_moved(group: bytes, entry: Entry, rest: int, flags: int) -> RecordDraft:
    """Return the draft of an entry that is rewritten.

    Args:
        group: 16 bytes.
        entry: to rewrite.
        rest: number of entries of its run that follow.
        flags: as in `RecordDraft`.
    """
    return draft_entry(group, entry)._replace(kind=RecordKind.MOVED, rest=rest, flags=flags)


def draft_hard_state(group: bytes, state: HardState) -> RecordDraft:
    """Return the draft of a term and vote."""
    return draft(RecordKind.HARD_STATE, group, (state.vote or "").encode(), state.term)


def check_entry(entry: Entry) -> None:
    """Reject an entry that does not fit a record.

    Raises:
        TooLarge: the payload is over MAX_PAYLOAD_BYTES.
    """
    size = len(entry.payload)
    if size > MAX_PAYLOAD_BYTES:
        raise TooLarge(
            f"the entry {entry.id} has {size} bytes, the limit of the log is {MAX_PAYLOAD_BYTES}; split it",
            {"limit": str(MAX_PAYLOAD_BYTES), "size": str(size)},
        )
    assert entry.id.index >= 1, f"entry without an index: {entry.id}"


def pack_record_header(record: RecordDraft, at: LogPosition, synced: LogPosition) -> bytes:
    """Return the header of a record; its payload follows it.

    Args:
        record: the draft.
        at: its position.
        synced: position up to which the log is known to be durable.
    """
    body = _BODY.pack(
        record.payload_crc, len(record.payload), at.sequence, at.offset, synced.sequence,
        synced.offset, record.group, record.term, record.index, record.stamp, record.kind,
        record.entry_kind, record.flags, record.rest,
    )  # fmt: skip
    return _PREFIX.pack(RECORD_MAGIC, crc32c(body)) + body


def unpack_record(data: bytes, offset: int, sequence: int, base: int = 0) -> Record | None:
    """Return the record at an offset; None: there is no valid record header.

    Args:
        data: bytes of the segment.
        offset: in `data`.
        sequence: sequence number of the segment.
        base: offset of `data` in the segment.
    """
    found = inspect_record(data, offset, sequence, base)
    return None if isinstance(found, str) else found


def inspect_record(data: bytes, offset: int, sequence: int, base: int = 0) -> Record | str:
    """Return the record at an offset, or the failed check as text.

    Args:
        data: bytes of the segment, or a part of it.
        offset: in `data`.
        sequence: sequence number of the segment.
        base: offset of `data` in the segment.
    """
    start = offset + RECORD_HEADER_BYTES
    body = data[offset + _PREFIX.size : start]
    if len(body) < _BODY.size:
        return "the file ends within a record header"
    magic, crc = _PREFIX.unpack_from(data, offset)
    if magic != RECORD_MAGIC:
        return "no record begins here: its magic is missing"
    if crc != crc32c(body):
        return "the checksum of a record header is wrong"
    (payload_crc, length, own_sequence, own_offset, synced_sequence, synced_offset, group, term,
     index, stamp, kind, entry_kind, flags, rest) = _BODY.unpack(body)  # fmt: skip
    if own_sequence != sequence or own_offset != base + offset:
        return f"a record of segment {own_sequence}, offset {own_offset} is stored here"
    if kind not in _KINDS or (kind in ENTRIES and (entry_kind not in _ENTRY_KINDS or not index)):
        return f"a record of an unknown kind ({kind}, entry kind {entry_kind}, index {index})"
    payload: bytes | None = data[start : start + length]
    if (
        len(payload or b"") != length
        or crc32c(payload) != payload_crc
        or not _is_valid(kind, payload)
    ):
        payload = None
    return Record(
        _KINDS[kind], group, term, index, stamp, entry_kind, own_offset, RECORD_HEADER_BYTES + length,
        LogPosition(synced_sequence, synced_offset), payload, rest, flags,
    )  # fmt: skip


def _is_valid(kind: int, payload: bytes | None) -> bool:
    """Return whether a payload with a valid checksum is valid for its kind."""
    data = payload or b""
    if kind == RecordKind.HARD_STATE:
        return data.decode(errors="replace").encode() == data
    if kind == RecordKind.FOOTER:
        rows = len(data) - _FOOTER.size
        return rows >= 0 and rows == _FOOTER.unpack_from(data)[1] * ROW_BYTES
    return True


def to_entry(record: Record) -> Entry:
    """Return the Raft entry of a valid ENTRY or MOVED record."""
    assert record.payload is not None, f"damaged record at {record.offset}"
    kind = _ENTRY_KINDS[record.entry_kind]
    return Entry(OpId(record.term, record.index), record.stamp, kind, record.payload)


def to_hard_state(record: Record) -> HardState:
    """Return the term and vote of a valid HARD_STATE record."""
    assert record.payload is not None, f"damaged record at {record.offset}"
    vote = record.payload.decode()
    return HardState(record.term, vote or None)  # type: ignore[arg-type]


def to_group(raw: bytes) -> TabletId:
    """Return the id of 16 bytes."""
    return TabletId(raw.hex())


def pack_row(row: IndexRow) -> bytes:
    """Return the bytes of one row of the index."""
    return _ROW.pack(*row)


def footer_bytes(rows_bytes: int) -> int:
    """Return the size of footer and trailer for packed rows of this size."""
    return RECORD_HEADER_BYTES + _FOOTER.size + rows_bytes + TRAILER_BYTES


def pack_footer(
    rows: bytes | bytearray, close_time_us: int, at: LogPosition, synced: LogPosition
) -> list[bytes]:
    """Return footer and trailer of a segment whose records end at `at`.

    Args:
        rows: the packed rows, in the order of their offsets.
        close_time_us: wall time, microseconds since the epoch; 0: unknown.
        at: position of the footer.
        synced: position up to which the log is known to be durable.
    """
    payload = _FOOTER.pack(close_time_us, len(rows) // ROW_BYTES, 0) + rows
    header = pack_record_header(draft(RecordKind.FOOTER, NO_GROUP, payload), at, synced)
    head = _TRAILER.pack(at.offset, at.sequence, 0, TRAILER_MAGIC)
    trailer = _TRAILER.pack(at.offset, at.sequence, crc32c(head), TRAILER_MAGIC)
    return [header, payload, trailer]


def unpack_footer(record: Record) -> tuple[int, list[IndexRow]]:
    """Return (close time in microseconds, rows of the index) of a valid FOOTER record."""
    payload = record.payload
    assert payload is not None, f"damaged footer at {record.offset}"
    rows = [IndexRow(*values) for values in _ROW.iter_unpack(payload[_FOOTER.size :])]
    return _FOOTER.unpack_from(payload)[0], rows


def find_footer(data: bytes, end: int, sequence: int) -> int | None:
    """Return the offset of the footer according to the trailer; None: there is no valid trailer.

    Args:
        data: bytes of the segment.
        end: offset at which the trailer ends.
        sequence: sequence number of the segment.
    """
    tail = data[max(0, end - TRAILER_BYTES) : end]
    if len(tail) < TRAILER_BYTES:
        return None
    offset, own, crc, magic = _TRAILER.unpack(tail)
    head = _TRAILER.pack(offset, sequence, 0, TRAILER_MAGIC)
    whole = magic == TRAILER_MAGIC and own == sequence and crc == crc32c(head)
    return int(offset) if whole else None
