"""Reading one segment's bytes: its records in order, and the stretches that are none.

Rules: pure; says what is there, not what it means (recovery.py decides torn tail or damage).
"""

from dataclasses import dataclass, field

from nyala.common.errors import BadChecksum
from nyala.raft.messages import EntryKind
from nyala.wal.format import (
    RECORD_MAGIC,
    SEGMENT_HEADER_BYTES,
    TRAILER_BYTES,
    IndexRow,
    LogPosition,
    Record,
    RecordKind,
    crc32c,
    find_footer,
    unpack_footer,
    unpack_record,
    unpack_segment_header,
)

TRIM_BYTES = 1 << 20
"""Of a file looked at together for its end."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A stretch without a whole record.

    Attributes:
        start: offset of its first byte.
        end: offset after its last byte.
        record: the record's header, if that is whole and only the payload is damaged.
        footer: it is the footer or the trailer: no record is lost.
    """

    start: int
    end: int
    record: Record | None = None
    footer: bool = False


@dataclass(slots=True)
class SegmentScan:
    """Content of one segment's file.

    Attributes:
        path: of the file.
        sequence: from the file's name.
        server_uuid: from the header; None: the header is damaged or missing.
        size: bytes of the file.
        checksum: of these bytes.
        blank: nothing was ever written behind the header.
        records: whole records without the footer, by offset.
        gaps: by offset.
        end: offset after the last record or gap; where a footer stands, or should.
        footer: the footer's record; its payload is None if that is damaged.
        omitted_records: records that were here and are read again when they are needed; see `drop_payloads`.
    """

    path: str
    sequence: int
    server_uuid: str | None
    size: int
    checksum: int
    blank: bool
    records: list[Record] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    end: int = SEGMENT_HEADER_BYTES
    footer: Record | None = None
    omitted_records: int = 0

    def drop_payloads(self) -> None:
        """Keep only what a verdict needs: of each group one record, and the one that proves most."""
        kept = {r.group: r for r in self.records}
        if self.records:
            newest = max(self.records, key=lambda r: r.synced)
            kept[newest.group] = newest
        self.omitted_records = len(self.records)
        self.records = [r._replace(payload=b"") for r in kept.values()]
        if not self.gaps and self.footer is not None:
            self.footer = self.footer._replace(payload=None)

    @property
    def rows(self) -> list[IndexRow] | None:
        """The index array; None: no whole footer."""
        if self.footer is None or self.footer.payload is None:
            return None
        return unpack_footer(self.footer)[1]

    @property
    def proven(self) -> LogPosition:
        """The furthest position that this segment proves to have been durable."""
        known = [max((r.synced for r in self.records), default=LogPosition(0, 0))]
        known += [g.record.synced for g in self.gaps if g.record is not None]
        if self.footer is not None:
            known.append(self.footer.synced)
        if self.server_uuid is not None or not self.blank:
            # A segment gets its name only when the one before it is sealed and synced.
            known.append(LogPosition(self.sequence, 0))
        return max(known)


def scan(data: bytes, path: str, sequence: int, *, payloads: bool = True) -> SegmentScan:
    """Read one segment.

    Args:
        data: the whole file.
        path: for messages.
        sequence: that its name tells.
        payloads: False: those of operations are checked and left out.

    Raises:
        BadVersion: a whole header of another format version.
    """
    used = _used(data)
    found = SegmentScan(path, sequence, None, len(data), crc32c(data), used <= SEGMENT_HEADER_BYTES)
    try:
        uuid, own = unpack_segment_header(data, path)
        if own == sequence:  # a file under another's name is as good as without a header
            found.server_uuid = uuid
    except BadChecksum:
        pass  # recovery reports it, or drops a blank file
    while found.end < used and found.footer is None:
        record = unpack_record(data, found.end, sequence)
        if record is None:
            if not _unreadable(data, found, used):
                break
        elif record.kind is RecordKind.FOOTER:
            _take_footer(data, found, record)
        else:
            if record.payload is None:
                found.gaps.append(Gap(found.end, min(found.end + record.length, len(data)), record))
            elif payloads or record.entry_kind != EntryKind.OPERATION:
                found.records.append(record)
            else:
                found.records.append(record._replace(payload=b""))
            found.end = min(found.end + record.length, len(data))
    return found


def _used(data: bytes) -> int:
    """Return the length without the zeros at the end."""
    end = len(data)
    while end:
        start = max(0, end - TRIM_BYTES)
        if piece := data[start:end].rstrip(b"\0"):
            return start + len(piece)
        end = start
    return 0


def _unreadable(data: bytes, found: SegmentScan, used: int) -> bool:
    """Note a stretch that starts with no record; return whether the segment goes on behind it."""
    if find_footer(data, len(data), found.sequence) == found.end:
        found.gaps.append(Gap(found.end, len(data), footer=True))
        return False
    start = found.end
    found.end = _next_record(data, start + 1, used, found.sequence)
    found.gaps.append(Gap(start, found.end))
    return True


def _take_footer(data: bytes, found: SegmentScan, record: Record) -> None:
    """Note the footer, and if it or the trailer is damaged. Nothing behind a footer counts."""
    found.footer = record
    end = record.offset + record.length
    if record.payload is None:
        found.gaps.append(Gap(record.offset, end, record, footer=True))
        return
    if find_footer(data, end + TRAILER_BYTES, found.sequence) != record.offset:
        found.gaps.append(Gap(end, end + TRAILER_BYTES, record, footer=True))


def _next_record(data: bytes, start: int, used: int, sequence: int) -> int:
    """Return where the next whole record header stands, or the end of what was written."""
    while True:
        start = data.find(RECORD_MAGIC, start, used)
        if start < 0:
            return used
        if unpack_record(data, start, sequence) is not None:
            return start
        start += 1
