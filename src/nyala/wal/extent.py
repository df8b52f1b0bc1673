"""The extent of the log, noted beside it: from which segment on it must be there, and up to where.

A log that is gone, or whose first or last segments are, shows nothing of that itself. The note is the file
`<data directory>/wal.extent` (bytes: docs/internals/formats-wal.md). What it tells is never more than what is
durable: the end moves after the log did, the beginning before a segment goes. Without it, as with a directory
of an older build, the log is taken as it is found. Blocking calls; on one lane, DISK, so that they have an
order.
"""

import errno
import logging
from dataclasses import dataclass
from struct import Struct

import google_crc32c

from nyala.env.files import Files
from nyala.wal.format import LogPosition

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
        first: no segment from this one on has been collected.
        end: everything before this position was durable once.
        missing: a start found that some of it is gone, and whose records those were is not yet noted.
    """

    first: int
    end: LogPosition
    missing: bool = False

    @property
    def empty(self) -> bool:
        """True if nothing has to be there."""
        return self.end <= LogPosition(self.first, 0) and not self.missing


def encode(extent: Extent) -> bytes:
    """Return the bytes of the file."""
    body = _FILE.pack(MAGIC, VERSION, extent.first, *extent.end, extent.missing)
    return body + int(google_crc32c.value(body)).to_bytes(_CRC_BYTES, "little")


def decode(raw: bytes) -> Extent | None:
    """Return what the file says; None if it is damaged: the log's own records then have to do."""
    body, crc = raw[:-_CRC_BYTES], raw[-_CRC_BYTES:]
    if len(body) != _FILE.size or int.from_bytes(crc, "little") != google_crc32c.value(body):
        return None
    magic, version, first, sequence, offset, missing = _FILE.unpack(body)
    if (magic, version) != (MAGIC, VERSION):
        return None
    return Extent(first, LogPosition(sequence, offset), bool(missing))


class ExtentFile:
    """The note of one data directory.

    Args:
        files: where it lives.
        directory: the data directory.

    Attributes:
        extent: what it says; None: there is none, or it is damaged.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self.extent: Extent | None = None
        self._removed_below = 0  # segments before this one are gone, or about to be

    def load(self) -> None:
        """Read it."""
        if not self._files.exists(self._path):
            return
        self.extent = decode(self._files.read(self._path))
        if self.extent is None:
            log.warning("%s is damaged; the log is taken as it is found", self._path)
        self._files.sync_dir(self._directory)  # else a power cut undoes what was read

    def save(self, extent: Extent) -> None:
        """Replace it; durable on return. On a full disk it is removed, which needs no space.

        One that tells of a loss is never removed: who lost what would be forgotten.

        Raises:
            OSError: what it said before is in place, or nothing.
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
        """Note that segments before this one are about to be removed. Raises as `save`."""
        self._removed_below = max(self._removed_below, first)
        if self.extent is not None and first > self.extent.first:
            end = max(self.extent.end, LogPosition(first, 0))
            self.save(Extent(first, end, self.extent.missing))

    def advance_end(self, end: LogPosition, first: int) -> None:
        """Note that the log, which begins at segment `first`, is durable up to `end`; a failure is borne."""
        known = self.extent
        try:
            if known is None:
                self.save(Extent(max(first, self._removed_below), end))
            else:
                self.save(Extent(known.first, max(known.end, end), known.missing))
        except OSError as err:
            log.warning("%s was not brought up to date: %s", self._path, err)
