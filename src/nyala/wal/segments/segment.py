"""A segment's file: create under a placeholder name, activate, append, seal.

Blocking calls, for lanes; an OSError is passed on unchanged. Recovery reads segments (scan.py).
"""

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from nyala.common.ids import TabletId
from nyala.env.files import AppendFile, Buffer, Files
from nyala.wal.segments.format import (
    ENTRIES,
    SEGMENT_HEADER_BYTES,
    IndexRow,
    LogPosition,
    Record,
    RecordKind,
    footer_bytes,
    pack_footer,
    pack_row,
    pack_segment_header,
)

SUFFIX = ".wal"
PLACEHOLDER_SUFFIX = ".wal.new"
_NAME = re.compile(r"([0-9]{10})\.wal")
RELEASE_BYTES = 256 << 10
"""Number of written bytes after which a segment's pages are dropped from the page cache.

The next rounds reuse the memory: fresh memory is expensive, and only slow followers read the log.
"""
PINNED = 1 << 64
"""An index above all others: retains every segment with records of a corrupt group."""


def segment_name(sequence: int) -> str:
    """Return the name of a segment's file."""
    return f"{sequence:010d}{SUFFIX}"


def segment_path(directory: str, sequence: int) -> str:
    """Return the path of a segment in the log's directory."""
    return f"{directory}/{segment_name(sequence)}"


def sequence_of(name: str) -> int | None:
    """Return the sequence number in a file name; None: it is not a segment's name."""
    found = _NAME.fullmatch(name)
    sequence = int(found[1]) if found else 0
    return sequence if 0 < sequence < 1 << 32 else None


@dataclass(slots=True)
class Segment:
    """In-memory state of a segment: which groups have records in it.

    Attributes:
        sequence: sequence number.
        path: path of its file.
        end: offset after its last record.
        last: highest entry index of each group that has one here.
        hard_states: groups with a hard state here.
        readers: number of reads in progress, during which its file is retained.
    """

    sequence: int
    path: str
    end: int = SEGMENT_HEADER_BYTES
    last: dict[TabletId, int] = field(default_factory=dict)
    hard_states: dict[TabletId, None] = field(default_factory=dict)
    readers: int = 0

    def note(self, kind: RecordKind, group: TabletId, index: int) -> None:
        """Record that a record is in this segment.

        Args:
            kind: kind of the record.
            group: id of the record's group.
            index: index of the entry.
        """
        if kind in ENTRIES:
            self.last[group] = max(index, self.last.get(group, 0))
        elif kind is RecordKind.HARD_STATE:
            self.hard_states[group] = None

    def forget(self, group: TabletId) -> None:
        """Record that no record of this group is needed any more."""
        self.last.pop(group, None)
        self.hard_states.pop(group, None)


def row_of(record: Record) -> IndexRow:
    """Return the index row of a record."""
    return IndexRow(record.group, record.term, record.index, record.offset, record.length)


class SegmentWriter:
    """Writer of the active segment. One call at a time.

    Args:
        segment: its in-memory state.
        file: open for appending after the header.
        placeholder: path before activation.
        preallocated_bytes: preallocated length.

    Attributes:
        allocated_bytes: length allocated so far; greater once a round exceeded the preallocated length.
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
        """Create the next segment's file: preallocated, with its header, synced, not yet part of the log.

        Args:
            files: file system of the segments.
            directory: directory of the log.
            sequence: sequence number of the segment.
            server_uuid: for its header.
            segment_bytes: preallocated length.

        Raises:
            OSError: no file is left.
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
        """Rename the file into place, durably: it is part of the log from now on."""
        files.rename(self._placeholder, self.segment.path)
        files.sync_dir(self.segment.path.rpartition("/")[0])

    def discard(self, files: Files) -> None:
        """Close and remove a file that never became part of the log."""
        self.close()
        files.remove(self._placeholder)

    def write(self, buffers: Sequence[Buffer], *, sync: bool) -> None:
        """Append a round with one vectored write and, if `sync`, one sync.

        Within the preallocated length only the data is synced; beyond it the file's length too.
        """
        end = self._file.append(buffers)
        if sync:
            self._file.sync(data_only=end <= self.preallocated_bytes)
            if end - self._released >= RELEASE_BYTES:
                self._file.release()
                self._released = end

    def extend(self, end: int) -> None:
        """Allocate disk space up to `end`, so that a full disk is detected before anything is written."""
        self._file.preallocate(end)
        self.allocated_bytes = end

    def add_row(self, row: IndexRow) -> None:
        """Add a record to the index."""
        self.rows += pack_row(row)

    def reserve_footer(self) -> None:
        """Allocate disk space for the footer. Raises OSError on a full disk; nothing was written."""
        end = self.segment.end + footer_bytes(len(self.rows))
        if end > self.allocated_bytes:
            self.extend(end)

    def seal(self, close_time_us: int, synced: LogPosition) -> None:
        """Write the footer, truncate the unused part, sync, close. Durable on return."""
        at = LogPosition(self.segment.sequence, self.segment.end)
        end = self._file.append(pack_footer(self.rows, close_time_us, at, synced))
        self._file.truncate(end)
        self._file.sync(data_only=False)
        self.close()

    def close(self) -> None:
        """Close the file if it is open; without a footer the next open rebuilds the index."""
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
    """Truncate a segment that a crash left open, and write its footer. Durable on return.

    The tail is rewritten: after a failed sync the kernel may consider its pages clean, and no later sync
    would write them.

    Args:
        files: file system of the segments.
        segment: that was left open.
        tail: its last bytes, which may not be durable.
        rows: rows of the index, by offset.
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
    """Rewrite the tail of a sealed segment and sync it: its last sync may have failed.

    Args:
        files: file system of the segments.
        path: path of the segment.
        tail: its last bytes, which may not be durable.
    """
    file = files.open_append(path, files.size(path) - len(tail))
    file.append([tail])
    file.sync(data_only=False)
    file.close()
