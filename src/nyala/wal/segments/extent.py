"""The extent file beside the log: the segments that must exist.

It reveals that the log, or its first or last segments, are missing, which the other segments cannot show.
The file is `<data directory>/wal.extent` (bytes: docs/internals/formats-wal.md). It covers durable records
only: its end is written after the log was synced, its beginning before a segment is removed. Without the
file, as in a directory of an older build, the log is accepted as it is. Blocking calls, all in lane DISK,
which keeps their order.
"""

import errno
import logging
from dataclasses import dataclass
from struct import Struct

import google_crc32c

from nyala.env.files import Files
from nyala.wal.segments.format import LogPosition

FILE_NAME = "wal.extent"
MAGIC = b"NYALWEXT"
VERSION = 1
_FILE = Struct("<8sIIIQI")
"""Magic, version, first segment, the end (segment, offset), 1 if something is missing."""
_CRC_BYTES = 4

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extent:
    """Segments of a log that must be there.

    Attributes:
        first: sequence of the first segment; none from it on has been collected.
        end: position up to which the log was durable.
        missing: a start found segments missing, and the affected groups are not recorded yet.
    """

    first: int
    end: LogPosition
    missing: bool = False

    @property
    def empty(self) -> bool:
        """True if no segment is expected."""
        return self.end <= LogPosition(self.first, 0) and not self.missing


def encode(extent: Extent) -> bytes:
    """Return the bytes of the file."""
    body = _FILE.pack(MAGIC, VERSION, extent.first, *extent.end, extent.missing)
    return body + int(google_crc32c.value(body)).to_bytes(_CRC_BYTES, "little")


def decode(raw: bytes) -> Extent | None:
    """Return the extent; None: the file is damaged, and the log's own records have to suffice."""
    body, crc = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    if len(body) != _FILE.size or int.from_bytes(crc, "little") != google_crc32c.value(body):
        return None
    magic, version, first, sequence, offset, missing = _FILE.unpack(body)
    if (magic, version) != (MAGIC, VERSION):
        return None
    return Extent(first, LogPosition(sequence, offset), bool(missing))


class ExtentFile:
    """The extent file of one data directory.

    Args:
        files: the file system.
        directory: the data directory.

    Attributes:
        extent: its content; None: it does not exist, or is damaged.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self.extent: Extent | None = None
        self._removed_below = 0  # segments before this one are removed, or about to be

    def load(self) -> None:
        """Read the file."""
        if not self._files.exists(self._path):
            return
        self.extent = decode(self._files.read(self._path))
        if self.extent is None:
            log.warning("%s is damaged; the log is taken as it is found", self._path)
        self._files.sync_dir(self._directory)  # a power failure could undo what was read

    def save(self, extent: Extent) -> None:
        """Replace the file; durable on return. On a full disk it is removed, which needs no space.

        A file with `missing` set is never removed, since it is the only record of the loss.

        Raises:
            OSError: the file has its old content, or does not exist.
        """
        if extent == self.extent:
            return
        try:
            self._files.write_atomic(self._path, encode(extent))
        except OSError as err:
            if err.errno not in (errno.ENOSPC, errno.EDQUOT) or extent.missing:
                raise
            self._files.remove(self._path)
            self._files.sync_dir(self._directory)
            self.extent = None
        else:
            self.extent = extent

    def advance_first(self, first: int) -> None:
        """Record that segments before `first` are about to be removed. Raises as `save`."""
        self._removed_below = max(self._removed_below, first)
        if self.extent is not None and first > self.extent.first:
            end = max(self.extent.end, LogPosition(first, 0))
            self.save(Extent(first, end, self.extent.missing))

    def advance_end(self, end: LogPosition, first: int) -> None:
        """Record that the log, which begins at segment `first`, is durable up to `end`; errors are logged."""
        known = self.extent
        try:
            if known is None:
                self.save(Extent(max(first, self._removed_below), end))
            else:
                self.save(Extent(known.first, max(known.end, end), known.missing))
        except OSError as err:
            log.warning("%s was not brought up to date: %s", self._path, err)
