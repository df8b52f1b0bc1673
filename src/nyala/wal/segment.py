"""One segment's file: create under a placeholder name, activate, append, seal.

Rules: blocking calls for lanes; an OSError goes up unchanged. Recovery reads segments (scan.py).
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nyala.common.ids import TabletId
from nyala.env.files import AppendFile, Buffer, Files
from nyala.wal.format import (
    ENTRIES,
    SEGMENT_HEADER_BYTES,
    IndexRow,
    LogPosition,
    Record,
    RecordKind,
    pack_footer,
    pack_row,
    pack_segment_header,
)

SUFFIX = ".wal"
PLACEHOLDER_SUFFIX = ".wal.new"
_NAME = re.compile(r"([0-9]{10})\.wal")
RELEASE_BYTES = 256 << 10
"""Bytes of a segment that are dropped from the page cache at a time, so that the next rounds use the same
memory again: untouched memory is expensive, and only slow followers read the log."""
PINNED = 1 << 64
"""Above every index: of a corrupt group every file is kept, until the group is forgotten."""


def segment_name(sequence: int) -> str:
    """Return the name of a segment's file."""
    return f"{sequence:010d}{SUFFIX}"


def segment_path(directory: str, sequence: int) -> str:
    """Return the path of a segment in the log's directory."""
    return f"{directory}/{segment_name(sequence)}"


def sequence_of(name: str) -> int | None:
    """Return the sequence number that a file's name tells, or None if it is no segment."""
    found = _NAME.fullmatch(name)
    sequence = int(found[1]) if found else 0
    return sequence if 0 < sequence < 1 << 32 else None


@dataclass(slots=True)
class Segment:
    """Segment as the log keeps it in memory: enough to know which groups still need it.

    Attributes:
        sequence: its number.
        path: its file.
        end: offset after its last record.
        last: highest entry index of each group that has one here.
        hard_states: groups with a hard state here.
        readers: reads in progress; its file stays until they end.
    """

    sequence: int
    path: str
    end: int = SEGMENT_HEADER_BYTES
    last: dict[TabletId, int] = field(default_factory=dict)
    hard_states: dict[TabletId, None] = field(default_factory=dict)
    readers: int = 0

    def note(self, kind: RecordKind, group: TabletId, index: int) -> None:
        """Note that a record is in this segment.

        Args:
            kind: of the record.
            group: of the record.
            index: of the entry.
        """
        if kind in ENTRIES:
            self.last[group] = max(index, self.last.get(group, 0))
        elif kind is RecordKind.HARD_STATE:
            self.hard_states[group] = None

    def forget(self, group: TabletId) -> None:
        """Nobody needs this group's records any more."""
        self.last.pop(group, None)
        self.hard_states.pop(group, None)


def row_of(record: Record) -> IndexRow:
    """Return the index array's row of a record."""
    return IndexRow(record.group, record.term, record.index, record.offset, record.length)


class SegmentWriter:
    """The segment that is appended to. One call at a time.

    Args:
        segment: what is remembered of it.
        file: open behind the header.
        placeholder: the name it still has, or None.
        preallocated_bytes: reserved length.

    Attributes:
        allocated_bytes: reserved by now; more, once a round had to pass the preallocated length.
    """

    def __init__(
        self, segment: Segment, file: AppendFile, placeholder: str, preallocated_bytes: int
    ) -> None:
        self.segment = segment
        self.preallocated_bytes = self.allocated_bytes = preallocated_bytes
        self.rows = bytearray()
        self._file = file
        self._placeholder = placeholder
        self._released = 0
        self._open = True

    @classmethod
    def create(
        cls, files: Files, directory: str, sequence: int, server_uuid: str, segment_bytes: int
    ) -> "SegmentWriter":
        """Make the next segment's file, preallocated, with its header, synced, not yet in the log.

        Args:
            files: where segments live.
            directory: of the log.
            sequence: of the segment.
            server_uuid: for its header.
            segment_bytes: preallocated length.

        Raises:
            OSError: nothing is left behind.
        """
        segment = Segment(sequence, segment_path(directory, sequence))
        placeholder = segment.path.removesuffix(SUFFIX) + PLACEHOLDER_SUFFIX
        files.remove(placeholder)
        file = files.open_append(placeholder)
        try:
            file.preallocate(segment_bytes)
            file.append([pack_segment_header(server_uuid, sequence)])
            file.sync(data_only=False)
        except OSError:
            file.close()
            with contextlib.suppress(OSError):  # the first error is the one that matters
                files.remove(placeholder)
            raise
        return cls(segment, file, placeholder, segment_bytes)

    def activate(self, files: Files) -> None:
        """Give the file its name, durably: from here on it is part of the log."""
        files.rename(self._placeholder, self.segment.path)
        files.sync_dir(self.segment.path.rpartition("/")[0])

    def discard(self, files: Files) -> None:
        """Close and remove a file that never became part of the log."""
        self.close()
        files.remove(self._placeholder)

    def write(self, buffers: Sequence[Buffer], *, sync: bool) -> None:
        """Append a round with one vectored write and, if asked, one sync.

        Inside the preallocated length the data alone is synced; beyond it the file's length too.
        """
        end = self._file.append(buffers)
        if sync:
            self._file.sync(data_only=end <= self.preallocated_bytes)
            if end - self._released >= RELEASE_BYTES:
                self._file.release()
                self._released = end

    def extend(self, end: int) -> None:
        """Reserve disk space up to `end`, so that a full disk is met before anything is written."""
        self._file.preallocate(end)
        self.allocated_bytes = end

    def add_row(self, row: IndexRow) -> None:
        """Add a record to the index array."""
        self.rows += pack_row(row)

    def seal(self, close_time_us: int, synced: LogPosition) -> None:
        """Write the footer, cut the unused part off, sync, close. Durable on return."""
        at = LogPosition(self.segment.sequence, self.segment.end)
        end = self._file.append(pack_footer(self.rows, close_time_us, at, synced))
        self._file.truncate(end)
        self._file.sync(data_only=False)
        self.close()

    def close(self) -> None:
        """Close the file if it is open; without a footer the next open rebuilds the index array."""
        if self._open:
            self._open = False
            self._file.close()


def reseal(
    files: Files,
    segment: Segment,
    tail: Buffer,
    rows: Sequence[IndexRow],
    close_time_us: int,
    synced: LogPosition,
) -> None:
    """Cut off a segment that a crash left open at its end, and write its footer. Durable on return.

    The tail is written again: after a sync that failed the kernel may take its pages for clean, and no later
    sync would write them.

    Args:
        files: where segments live.
        segment: that was left open.
        tail: its last bytes, which are not known to be durable.
        rows: of the index array, by offset.
        close_time_us: wall time, microseconds since the epoch.
        synced: position up to which the log is known to be durable.
    """
    file = files.open_append(segment.path, segment.end - len(tail))
    file.append([tail])
    file.truncate(segment.end)
    writer = SegmentWriter(segment, file, "", 0)
    for row in rows:
        writer.add_row(row)
    writer.seal(close_time_us, synced)


def sync_sealed(files: Files, path: str, tail: Buffer) -> None:
    """Write the tail of a sealed segment again, and sync: its last sync may not have been done.

    Args:
        files: where segments live.
        path: of the segment.
        tail: its last bytes, which are not known to be durable.
    """
    file = files.open_append(path, files.size(path) - len(tail))
    file.append([tail])
    file.sync(data_only=False)
    file.close()
