"""Parser of one segment's bytes: its records in order, and the gaps between them.

It reports the content only; recovery/verdict.py decides whether a gap is a torn tail or damage.
"""

from dataclasses import dataclass, field

from nyala.common.errors import BadChecksum
from nyala.raft.messages import EntryKind
from nyala.wal.segments.format import (
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
"""Number of bytes examined at a time while searching for the end of the data."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A range without a valid record.

    Attributes:
        start: offset of its first byte.
        end: offset after its last byte.
        record: the record with a damaged payload, if its header is valid.
        footer: it is the footer or the trailer, so no record is lost.
    """

    start: int
    end: int
    record: Record | None = None
    footer: bool = False


@dataclass(slots=True)
class SegmentScan:
    """Content of one segment's file.

    Attributes:
        path: path of the file.
        sequence: from the file's name.
        server_uuid: from the header; None: the header is damaged or missing.
        size: size of the file, in bytes.
        checksum: checksum of the file.
        blank: no record was ever written.
        records: valid records without the footer, by offset.
        gaps: by offset.
        end: offset after the last record or gap: the position of the footer.
        footer: the footer's record; its payload is None if that is damaged.
        omitted_records: number of records that have to be read again when needed; see `drop_payloads`.
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
        """Keep only what a verdict needs: a record of each group, and that with the last synced position."""
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
        """Rows of the index; None: there is no valid footer."""
        if self.footer is None or self.footer.payload is None:
            return None
        return unpack_footer(self.footer)[1]

    @property
    def proven(self) -> LogPosition:
        """The last position that this segment proves to have been durable."""
        known = [max((r.synced for r in self.records), default=LogPosition(0, 0))]
        known += [g.record.synced for g in self.gaps if g.record is not None]
        if self.footer is not None:
            known.append(self.footer.synced)
        if self.server_uuid is not None or not self.blank:
            # A segment is renamed into place only after the previous one is sealed and synced.
            known.append(LogPosition(self.sequence, 0))
        return max(known)


def scan(data: bytes, path: str, sequence: int, *, payloads: bool = True) -> SegmentScan:
    """Read one segment.

    Args:
        data: content of the file.
        path: path of the file, for messages.
        sequence: from the file name.
        payloads: False: payloads of operations are checked and dropped.

    Raises:
        BadVersion: a valid header of an unknown format version.
    """
    used = _used(data)
    found = SegmentScan(path, sequence, None, len(data), crc32c(data), used <= SEGMENT_HEADER_BYTES)
    try:
        uuid, own = unpack_segment_header(data, path)
        if own == sequence:  # a file with another file's name counts as one without a header
            found.server_uuid = uuid
    except BadChecksum:
        pass  # recovery reports it, or removes a blank file
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
    """Return the length without trailing zeros."""
    end = len(data)
    while end:
        start = max(0, end - TRIM_BYTES)
        if piece := data[start:end].rstrip(b"\0"):
            return start + len(piece)
        end = start
    return 0


def _unreadable(data: bytes, found: SegmentScan, used: int) -> bool:
    """Add a gap that does not start with a record; return whether the segment continues after it."""
    if find_footer(data, len(data), found.sequence) == found.end:
        found.gaps.append(Gap(found.end, len(data), footer=True))
        return False
    start = found.end
    found.end = _next_record(data, start + 1, used, found.sequence)
    found.gaps.append(Gap(start, found.end))
    return True


def _take_footer(data: bytes, found: SegmentScan, record: Record) -> None:
    """Record the footer, and damage of it or the trailer. Bytes after a footer are ignored."""
    found.footer = record
    end = record.offset + record.length
    if record.payload is None:
        found.gaps.append(Gap(record.offset, end, record, footer=True))
        return
    if find_footer(data, end + TRAILER_BYTES, found.sequence) != record.offset:
        found.gaps.append(Gap(end, end + TRAILER_BYTES, record, footer=True))


def _next_record(data: bytes, start: int, used: int, sequence: int) -> int:
    """Return the offset of the next valid record header, or the end of the data."""
    while True:
        start = data.find(RECORD_MAGIC, start, used)
        if start < 0:
            return used
        if unpack_record(data, start, sequence) is not None:
            return start
        start += 1
