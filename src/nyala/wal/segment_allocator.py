"""Disk space for the log: new segments, and longer ones, as long as the disk keeps its reserve.

The reserve is for others on the disk: flushes, which free the log, and consensus metadata. A log that met
a disk without a byte could not even make room for itself. Blocking calls for lanes.
"""

import errno
import os

from nyala.env.files import Files
from nyala.wal.segment import SegmentWriter

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk: transient, since space may become free again."""


class SegmentAllocator:
    """Makes the segments of one log.

    Args:
        files: where they live.
        directory: of the log.
        server_uuid: for their headers.
        segment_bytes: preallocated length of each.
        reserve_bytes: free space that the log leaves on its disk; 0: it takes the last byte.
        cleanup_bytes: of the reserve, so much may be used for what lets the log shrink.
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
        """Make the segment to begin with: out of the reserve too, or a restart could not free any.

        Raises:
            OSError: nothing is left behind.
        """
        return SegmentWriter.create(
            self._files, self._directory, sequence, self._server_uuid, self._segment_bytes
        )

    def create(self, sequence: int) -> SegmentWriter:
        """Make the next segment. Raises as `first`; ENOSPC if it would take of the reserve."""
        self._require(self._segment_bytes, self._reserve_bytes)
        return self.first(sequence)

    def extend(self, writer: SegmentWriter, end: int, freeing: bool) -> None:
        """Have disk space for a segment up to `end`, beyond its preallocated length.

        Args:
            writer: of the segment.
            end: offset.
            freeing: what is to be written there lets the log shrink.

        Raises:
            OSError: nothing was written; ENOSPC also if it would take of the reserve.
        """
        leave = self._reserve_bytes - (self.cleanup_bytes if freeing else 0)
        self._require(end - writer.allocated_bytes, leave)
        writer.extend(end)

    def _require(self, size_bytes: int, leave_bytes: int) -> None:
        free = self._files.free_bytes(self._directory) if leave_bytes else 0
        if leave_bytes and free - size_bytes < leave_bytes:
            text = f"{os.strerror(errno.ENOSPC)}: {free} bytes are free, the log leaves "
            raise OSError(errno.ENOSPC, f"{text}{leave_bytes} (wal_reserve_mb)")
