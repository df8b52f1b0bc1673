"""Allocation of disk space for the log: new segments, and longer ones, as long as the reserve stays free.

The reserve is for flushes, which allow the log to shrink, and for consensus metadata. A log on a completely
full disk could not free space itself. Blocking calls, for lanes.
"""

import errno
import os

from nyala.env.files import Files
from nyala.wal.segments.segment import SegmentWriter

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, which are transient."""


class SegmentAllocator:
    """Creates the segments of one log.

    Args:
        files: the file system.
        directory: directory of the log.
        server_uuid: for the segment headers.
        segment_bytes: preallocated length of each.
        reserve_bytes: free space that the log leaves on its disk; 0: none.
        cleanup_bytes: part of the reserve for records that allow the log to shrink.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        server_uuid: str,
        segment_bytes: int,
        reserve_bytes: int,
        cleanup_bytes: int = 0,
    ) -> None:
        self._files = files
        self._directory = directory
        self._server_uuid = server_uuid
        self._segment_bytes = segment_bytes
        self._reserve_bytes = reserve_bytes
        self.cleanup_bytes = min(cleanup_bytes, reserve_bytes)

    def first(self, sequence: int) -> SegmentWriter:
        """Create the first segment after a start.

        It may use the reserve, because a restart must be able to free space.

        Raises:
            OSError: no file is left.
        """
        return SegmentWriter.create(
            self._files, self._directory, sequence, self._server_uuid, self._segment_bytes
        )

    def create(self, sequence: int) -> SegmentWriter:
        """Create the next segment. Raises as `first`; ENOSPC also if it would use the reserve."""
        self._require(self._segment_bytes, self._reserve_bytes)
        return self.first(sequence)

    def extend(self, writer: SegmentWriter, end: int, freeing: bool) -> None:
        """Allocate disk space for a segment up to `end`, beyond its preallocated length.

        Args:
            writer: writer of the segment.
            end: offset.
            freeing: the records to write there allow the log to shrink.

        Raises:
            OSError: nothing was written; ENOSPC also if it would use the reserve.
        """
        leave = self._reserve_bytes - (self.cleanup_bytes if freeing else 0)
        self._require(end - writer.allocated_bytes, leave)
        writer.extend(end)

    def _require(self, size_bytes: int, leave_bytes: int) -> None:
        free = self._files.free_bytes(self._directory) if leave_bytes else 0
        if leave_bytes and free - size_bytes < leave_bytes:
            text = f"{os.strerror(errno.ENOSPC)}: {free} bytes are free, the log leaves "
            raise OSError(errno.ENOSPC, f"{text}{leave_bytes} (wal_reserve_mb)")
