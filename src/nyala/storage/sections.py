"""The container of every file of a state machine: header, sections, directory, trailer, each under a CRC32C.

Only this module packs or unpacks it; docs/internals/formats-tablet.md shows the bytes. Every byte of a
file is covered by exactly one checksum, padding too. A section is verified when it is first read.
"""

import struct
from collections.abc import Callable, Sequence

import google_crc32c
import numpy as np
import numpy.typing as npt

from nyala.common.errors import BadChecksum, Corrupt, newer_version
from nyala.env.files import Buffer, Files

VERSION = 1
_ALIGN = 64
_HEADER = struct.Struct("<8sI48xI")  # magic, version, CRC32C of the 60 bytes before
_ENTRY = struct.Struct("<IIQQ")  # tag, CRC32C of the section with its padding, offset, length
_TRAILER = struct.Struct("<QIIII8s")  # directory offset, sections, its CRC32C, version, own, magic
_OWN_CRC = slice(20, 24)


def crc_of(data: Buffer) -> int:
    """Return the CRC32C of bytes, without copying them."""
    return int(google_crc32c.value(np.frombuffer(data, np.uint8))) if len(data) else 0


class SectionWriter:
    """Writes one container, section by section.

    Args:
        magic: eight bytes that tell the kind of file.
        sink: takes the next bytes of the file, in order.
    """

    def __init__(self, magic: bytes, sink: Callable[[Sequence[Buffer]], object]) -> None:
        self._magic = magic
        self._sink = sink
        self._entries: list[bytes] = []
        header = _HEADER.pack(magic, VERSION, 0)
        sink([header[:-4], struct.pack("<I", crc_of(header[:-4]))])
        self._end = _HEADER.size

    def add(self, tag: int, data: Buffer) -> None:
        """Write the next section."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        padding = bytes(-len(view) % _ALIGN)
        crc = google_crc32c.extend(crc_of(view), padding)
        self._entries.append(_ENTRY.pack(tag, crc, self._end, len(view)))
        self._sink([view, padding])
        self._end += len(view) + len(padding)

    def finish(self) -> int:
        """Write directory and trailer; return the length of the file in bytes."""
        directory = b"".join(self._entries)
        magic = self._magic
        fields = (self._end, len(self._entries), crc_of(directory), VERSION)
        trailer = _TRAILER.pack(*fields, 0, magic)
        trailer = _TRAILER.pack(*fields, crc_of(_without_own(trailer)), magic)
        self._sink([directory, trailer])
        return self._end + len(directory) + len(trailer)


def pack(magic: bytes, sections: Sequence[tuple[int, Buffer]]) -> bytes:
    """Return a small file whole."""
    parts: list[Buffer] = []
    writer = SectionWriter(magic, parts.extend)
    for tag, data in sections:
        writer.add(tag, data)
    writer.finish()
    return b"".join(parts)


class Sections:
    """The sections of one file, read in place.

    Args:
        data: the whole file, usually mapped.
        path: for messages.
        magic: magic number of the kind of file that it has to be.

    Raises:
        BadChecksum: header, directory or trailer are damaged.
        BadVersion: written by a newer build.
        Corrupt: not such a file, or cut short.
    """

    def __init__(self, data: memoryview, path: str, magic: bytes) -> None:
        self._data = data
        self._path = path
        if len(data) < _HEADER.size + _TRAILER.size:
            raise self._corrupt(Corrupt, 0, f"it ends after {len(data)} bytes")
        self._check_header(magic)
        trailer = bytes(data[-_TRAILER.size :])
        at, count, crc, version, own, last = _TRAILER.unpack(trailer)
        end = len(data) - _TRAILER.size
        if own != crc_of(_without_own(trailer)) or last != magic or version != VERSION:
            raise self._corrupt(BadChecksum, end, "its trailer is damaged, or it was cut short")
        if at + count * _ENTRY.size != end or crc_of(data[at:end]) != crc:
            raise self._corrupt(BadChecksum, at, "its directory is damaged")
        entries = list(_ENTRY.iter_unpack(data[at:end]))
        self.tags = [e[0] for e in entries]
        self._crcs = [e[1] for e in entries]
        self._bounds = [(e[2], e[3]) for e in entries]
        self._ends = [e[2] for e in entries[1:]] + [at]
        self._verified = [False] * count

    def _check_header(self, magic: bytes) -> None:
        found, version, crc = _HEADER.unpack_from(self._data)
        if crc != crc_of(self._data[: _HEADER.size - 4]):
            raise self._corrupt(BadChecksum, 0, "its header is damaged")
        if found != magic:
            raise self._corrupt(Corrupt, 0, f"its magic is {found!r}, not {magic!r}")
        if version != VERSION:
            raise newer_version(f"file {self._path}", version, VERSION)

    def __len__(self) -> int:
        return len(self.tags)

    def section(self, number: int) -> memoryview:
        """Return a section's bytes, verified at the first read."""
        at, length = self._bounds[number]
        if not self._verified[number]:
            if crc_of(self._data[at : self._ends[number]]) != self._crcs[number]:
                raise self._corrupt(BadChecksum, at, f"section {number} is damaged")
            self._verified[number] = True
        return self._data[at : at + length]

    def size(self, number: int) -> int:
        """Return the length of a section, without reading it."""
        return int(self._bounds[number][1])

    def tagged(self, tag: int) -> memoryview:
        """Return the bytes of the one section with a tag.

        Raises:
            Corrupt: there is none.
        """
        if tag not in self.tags:
            raise self._corrupt(Corrupt, 0, f"it has no section {tag}")
        return self.section(self.tags.index(tag))

    def verify(self) -> None:
        """Verify every section now."""
        for number in range(len(self.tags)):
            self.section(number)

    def check(self, files: Files) -> None:
        """Check that all data read so far were in the file, which may have been truncated.

        Raises:
            Corrupt: a page of it could not be read.
        """
        at = files.unreadable_offset(self._data)
        if at is not None:
            why = "it was cut short under this process, or its disk cannot read it"
            raise self._corrupt(Corrupt, at, why)

    def array(self, tag: int, dtype: npt.DTypeLike) -> np.ndarray:
        """Return a section as a read-only array over the file's memory."""
        data = self.tagged(tag)
        width = np.dtype(dtype).itemsize
        if len(data) % width:
            raise self._corrupt(Corrupt, 0, f"section {tag} of {len(data)} bytes is no array")
        return np.frombuffer(data, dtype)

    def _corrupt(self, error: type[Corrupt], offset: int, why: str) -> Corrupt:
        return error(
            f"file {self._path} cannot be used: {why} (at byte {offset}); "
            "replace this replica from a healthy one",
            {"path": self._path, "offset": str(offset)},
        )


def _without_own(trailer: bytes) -> bytes:
    return trailer[: _OWN_CRC.start] + trailer[_OWN_CRC.stop :]
