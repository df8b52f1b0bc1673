"""Data files of a journal: logs, entries, keys, as they were added or changed between two flush points.

A file is a list of logs, the logs that were deleted, entries in parts of one log each, the ids of entries of
older files that became invalid, and keys. The first file of a journal is a base: nothing is older. Entries
that became invalid before their file was written are not in it. docs/internals/journal.md shows the bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from nyala.common.errors import Corrupt
from nyala.env.files import Files
from nyala.journal.entries import CHUNK_BYTES, CHUNK_ROWS
from nyala.journal.keys import KeyValue
from nyala.storage.sections import Sections, SectionWriter

MAGIC = b"NYjrnDAT"
_META, _IDS, _LENGTHS, _INVALID_LOGS, _INVALID_IDS, _KEYS, _DATA = range(1, 8)
_KEYS_BYTES = 4 << 20
"""Keys and values of one section, in bytes."""

Ids = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A log as of the file's flush point: identity and the id of its last change."""

    created: int
    name: str
    last: int


@dataclass(frozen=True, slots=True)
class Part:
    """Entries of one log, in the order of their ids.

    Attributes:
        log: id of the change that created the log.
        ids: ids of the entries.
        lengths: lengths of their data, in bytes.
        data: data of all of them, one after the other.
    """

    log: int
    ids: Ids
    lengths: Lengths
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class DeletedKey:
    """A key that an older file has, and that is there no more."""

    key: str


class _Meta(msgspec.Struct, frozen=True):
    logs: list[tuple[int, str, int]]
    dropped: list[int]
    parts: list[tuple[int, int]]
    """Log and number of entries of each section with data."""
    keys: int


class _StoredKey(msgspec.Struct, frozen=True, array_like=True):
    key: str
    version: int
    value: bytes | None


class DataFileWriter:
    """Writes one data file, part by part.

    Args:
        files: the file system.
        path: path of the new file.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._file = files.open_append(path)
        self._writer = SectionWriter(MAGIC, self._file.append)
        self._parts: list[tuple[int, int]] = []
        self._ids: list[Ids] = []
        self._lengths: list[Lengths] = []
        self._keys: list[_StoredKey] = []
        self._keys_bytes = self._key_count = 0

    def add_part(self, part: Part) -> None:
        """Write entries of one log, at most a chunk's worth."""
        self._writer.add(_DATA, part.data)
        self._parts.append((part.log, len(part.ids)))
        self._ids.append(part.ids)
        self._lengths.append(part.lengths)

    def add_key(self, key: KeyValue | DeletedKey) -> None:
        """Write a key."""
        if isinstance(key, KeyValue):
            self._keys.append(_StoredKey(key.key, key.version, key.value))
            self._keys_bytes += key.size_bytes
        else:
            self._keys.append(_StoredKey(key.key, 0, None))
        self._key_count += 1
        if self._keys_bytes >= _KEYS_BYTES:
            self._write_keys()

    def finish(
        self,
        logs: Iterable[LogRecord],
        dropped: Iterable[int] = (),
        invalid: Sequence[tuple[int, int]] = (),
    ) -> int:
        """Write the rest and make the file durable; return its length in bytes.

        Args:
            logs: that have entries here, or changed.
            dropped: ids of the changes that created the logs that were deleted.
            invalid: log and id of each entry of an older file that became invalid.
        """
        if self._keys:
            self._write_keys()
        meta = _Meta(
            logs=[(log.created, log.name, log.last) for log in logs],
            dropped=list(dropped),
            parts=self._parts,
            keys=self._key_count,
        )
        pairs = np.array(invalid, np.uint64).reshape(-1, 2)
        self._writer.add(_META, msgspec.msgpack.encode(meta))
        self._writer.add(_IDS, np.concatenate([_NO_IDS, *self._ids]).astype("<u8").tobytes())
        self._writer.add(
            _LENGTHS, np.concatenate([_NO_LENGTHS, *self._lengths]).astype("<u4").tobytes()
        )
        self._writer.add(_INVALID_LOGS, pairs[:, 0].astype("<u8").tobytes())
        self._writer.add(_INVALID_IDS, pairs[:, 1].astype("<u8").tobytes())
        size = self._writer.finish()
        self._file.sync(data_only=False)
        return size

    def close(self) -> None:
        """Close the file, whether it is whole or not."""
        self._file.close()

    def _write_keys(self) -> None:
        self._writer.add(_KEYS, msgspec.msgpack.encode(self._keys))
        self._keys, self._keys_bytes = [], 0


_NO_IDS = np.empty(0, np.uint64)
_NO_LENGTHS = np.empty(0, np.uint32)
_stored_keys = msgspec.msgpack.Decoder(list[_StoredKey])


class DataFile:
    """A data file, read in place.

    Args:
        files: the file system.
        path: path of the file.

    Attributes:
        logs: as of the file's flush point.
        dropped: ids of the changes that created the logs that were deleted.
        invalid: log and id of each entry of an older file that became invalid.

    Raises:
        Corrupt: the file is damaged, or not such a file.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._sections = Sections(files.map(path), path, MAGIC)
        self._files = files
        self._path = path
        try:
            meta = msgspec.msgpack.decode(self._sections.tagged(_META), type=_Meta)
        except msgspec.MsgspecError as err:
            raise Corrupt(f"{path} is no data file that this build understands: {err}") from err
        self.logs = [LogRecord(*log) for log in meta.logs]
        self.dropped = meta.dropped
        self._parts = meta.parts
        self._ids = self._sections.array(_IDS, "<u8")
        self._lengths = self._sections.array(_LENGTHS, "<u4")
        self.invalid: list[tuple[int, int]] = list(
            zip(
                self._sections.array(_INVALID_LOGS, "<u8").tolist(),
                self._sections.array(_INVALID_IDS, "<u8").tolist(),
                strict=True,
            )
        )
        self._check_counts()

    @property
    def entries(self) -> int:
        """Entries in the file, those that became invalid later included."""
        return len(self._ids)

    def parts(self) -> Iterator[Part]:
        """Yield the parts in the file's order; within a log ids grow."""
        at = 0
        for (log, rows), number in zip(self._parts, self._numbered(_DATA), strict=True):
            ids, lengths = self._ids[at : at + rows], self._lengths[at : at + rows]
            data = self._sections.section(number)
            if int(lengths.sum(dtype=np.int64)) != len(data):
                raise Corrupt(f"{self._path}: entries of {len(data)} bytes have other lengths")
            yield Part(log, ids, lengths, data)
            at += rows

    def all_keys(self) -> Iterator[KeyValue | DeletedKey]:
        """Yield the keys."""
        for number in self._numbered(_KEYS):
            try:
                found = _stored_keys.decode(self._sections.section(number))
            except msgspec.MsgspecError as err:
                raise Corrupt(f"{self._path}: keys do not decode: {err}") from err
            for one in found:
                if one.value is None:
                    yield DeletedKey(one.key)
                else:
                    yield KeyValue(one.key, one.version, one.value)

    def check(self) -> None:
        """Make sure that what was read was in the file.

        Raises:
            Corrupt: a page of it could not be read when it was touched.
        """
        self._sections.check(self._files)

    def _numbered(self, tag: int) -> list[int]:
        return [number for number, found in enumerate(self._sections.tags) if found == tag]

    def _check_counts(self) -> None:
        rows = sum(rows for _, rows in self._parts)
        if not rows == len(self._ids) == len(self._lengths):
            raise Corrupt(f"{self._path} names {rows} entries and has {len(self._ids)}")
        if len(self._parts) != len(self._numbered(_DATA)):
            raise Corrupt(f"{self._path} names {len(self._parts)} parts and has others")


def in_parts(log: int, entries: Iterable[tuple[int, bytes]]) -> Iterator[Part]:
    """Gather entries of one log, in order, into parts of a chunk's size."""
    ids: list[int] = []
    found: list[bytes] = []
    size = 0
    for entry_id, data in entries:
        if ids and (size + len(data) > CHUNK_BYTES or len(ids) == CHUNK_ROWS):
            yield _part(log, ids, found)
            ids, found, size = [], [], 0
        ids.append(entry_id)
        found.append(data)
        size += len(data)
    if ids:
        yield _part(log, ids, found)


def _part(log: int, ids: list[int], found: list[bytes]) -> Part:
    lengths = np.array([len(data) for data in found], np.uint32)
    return Part(log, np.array(ids, np.uint64), lengths, b"".join(found))
