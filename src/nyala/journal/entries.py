"""The valid entries of one log in memory: arrays of ids and places, and data in chunks; no object per entry.

An entry costs 21 bytes beside its data. Invalid entries leave their rows and bytes behind until half of the
rows, or half of a chunk, are invalid; then what is valid is moved together, so that memory follows the valid
entries, at a constant cost for each change. A row counts as 32 bytes of its chunk, so that many small entries
are not moved for a few bytes.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 1 << 20
"""Data of one chunk, in bytes; one larger entry has a chunk of its own."""
CHUNK_ROWS = 1 << 14
"""Entries of one chunk."""
_LEAST_ROWS = 64
"""Rows that are not worth moving together."""
_ROW_BYTES = 32
"""Cost of moving a row, in bytes of data."""


Run = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], memoryview]
"""Ids of entries, lengths of their data, and the data of all of them."""


class _Chunk:
    """Data of consecutive entries.

    Attributes:
        data: data of all of them, valid and not.
        rows: rows that name it, of valid entries and not.
        live_bytes: size in bytes of the valid ones.
    """

    __slots__ = ("data", "live_bytes", "rows")

    def __init__(self, data: bytearray, rows: int) -> None:
        self.data = data
        self.rows = rows
        self.live_bytes = len(data)


class Entries:
    """Valid entries in the order of their ids. Lane APPLY."""

    def __init__(self) -> None:
        self._ids = array("Q")
        self._chunk_of = array("I")
        self._offsets = array("I")
        self._lengths = array("I")
        self._live = bytearray()
        self._chunks: dict[int, _Chunk] = {}
        self._next_chunk = 0
        self._stored_bytes = 0  # data of all chunks
        self.count = 0
        self.data_bytes = 0

    def __len__(self) -> int:
        return self.count

    @property
    def resident_bytes(self) -> int:
        """Memory of the entries, valid and not, with the chunks' unused parts left out."""
        rows = len(self._ids) * (self._ids.itemsize + 3 * self._offsets.itemsize + 1)
        return rows + self._stored_bytes

    def append(self, entry_id: int, data: bytes) -> None:
        """Add an entry with an id above all others."""
        assert not self._ids or entry_id > self._ids[-1], f"entry {entry_id} out of order"
        number = self._next_chunk - 1
        chunk = self._chunks.get(number)
        if chunk is None or _is_full(chunk, len(data)):
            number, chunk = self._new_chunk(bytearray(), 0)
        self._ids.append(entry_id)
        self._chunk_of.append(number)
        self._offsets.append(len(chunk.data))
        self._lengths.append(len(data))
        self._live.append(1)
        chunk.data += data
        self._stored_bytes += len(data)
        chunk.rows += 1
        chunk.live_bytes += len(data)
        self.count += 1
        self.data_bytes += len(data)

    def extend(self, runs: Iterable[Run]) -> None:
        """Add entries, whose data lies one after the other in each run; ids grow, above all others.

        Arrays grow once for all runs: in many steps they would leave as much memory behind as they take.
        """
        columns = self._ids, self._chunk_of, self._offsets, self._lengths
        added: tuple[list[npt.NDArray[Any]], ...] = ([], [], [], [])
        newest = self._ids[-1] if self._ids else -1
        for ids, lengths, data in runs:
            ends = np.cumsum(lengths, dtype=np.int64)
            first = start = 0
            while first < len(ids):
                fits = int(np.searchsorted(ends, start + CHUNK_BYTES, side="right"))
                last = max(first + 1, min(fits, first + CHUNK_ROWS))
                end = int(ends[last - 1])
                number, _ = self._new_chunk(bytearray(data[start:end]), last - first)
                offsets = ends[first:last] - lengths[first:last] - start
                assert int(ids[first]) > newest, "entries out of order"
                newest = int(ids[last - 1])
                added[0].append(ids[first:last])
                added[1].append(np.full(last - first, number, np.uint32))
                added[2].append(offsets.astype(np.uint32))
                added[3].append(lengths[first:last])
                self._live += b"\x01" * (last - first)
                first, start = last, end
            self.count += len(ids)
            self.data_bytes += start
        for column, parts in zip(columns, added, strict=True):
            if parts:
                column.frombytes(np.concatenate(parts).view(np.uint8).data)
            parts.clear()

    def invalidate(self, entry_id: int) -> bytes | None:
        """Take an entry out; return its data, or None if it is not a valid entry."""
        row = bisect_left(self._ids, entry_id)
        if row == len(self._ids) or self._ids[row] != entry_id or not self._live[row]:
            return None
        data = self._data(row)
        number = self._chunk_of[row]
        chunk = self._chunks[number]
        self._live[row] = 0
        self.count -= 1
        self.data_bytes -= len(data)
        chunk.live_bytes -= len(data)
        self._rewrite_if_half(number)
        if len(self._ids) > _LEAST_ROWS and 2 * self.count < len(self._ids):
            self._drop_rows()
        return data

    def size_of(self, entry_id: int) -> int | None:
        """Return the bytes of an entry's data; None: not a valid entry."""
        row = bisect_left(self._ids, entry_id)
        found = row < len(self._ids) and self._ids[row] == entry_id and self._live[row]
        return self._lengths[row] if found else None

    def get(self, entry_id: int) -> bytes | None:
        """Return the data of an entry; None: not a valid entry."""
        row = bisect_left(self._ids, entry_id)
        if row == len(self._ids) or self._ids[row] != entry_id or not self._live[row]:
            return None
        return self._data(row)

    def read(self, after: int, through: int) -> Iterator[tuple[int, bytes]]:
        """Yield id and data of the valid entries with `after` < id <= `through`, in order."""
        for row in range(bisect_right(self._ids, after), bisect_right(self._ids, through)):
            if self._live[row]:
                yield self._ids[row], self._data(row)

    def _data(self, row: int) -> bytes:
        at = self._offsets[row]
        return bytes(self._chunks[self._chunk_of[row]].data[at : at + self._lengths[row]])

    def _new_chunk(self, data: bytearray, rows: int) -> tuple[int, _Chunk]:
        number = self._next_chunk
        self._next_chunk += 1
        self._chunks[number] = _Chunk(data, rows)
        self._stored_bytes += len(data)
        return number, self._chunks[number]

    def _rewrite_if_half(self, number: int) -> None:
        """Move the valid entries of a chunk together, if half of it is invalid."""
        chunk = self._chunks[number]
        invalid_bytes = len(chunk.data) - chunk.live_bytes
        if invalid_bytes < chunk.live_bytes + _ROW_BYTES * chunk.rows:
            return
        first, last = bisect_left(self._chunk_of, number), bisect_right(self._chunk_of, number)
        live = [row for row in range(first, last) if self._live[row]]
        data = bytearray()
        for row in live:
            moved = self._data(row)
            self._offsets[row] = len(data)
            data += moved
        self._stored_bytes -= len(chunk.data) - len(data)
        chunk.data = data
        if not live:
            del self._chunks[number]

    def _drop_rows(self) -> None:
        """Drop the rows of invalid entries."""
        live = np.frombuffer(self._live, np.bool_).copy()
        self._ids = _selected(self._ids, live)
        self._chunk_of = _selected(self._chunk_of, live)
        self._offsets = _selected(self._offsets, live)
        self._lengths = _selected(self._lengths, live)
        self._live = bytearray(b"\x01" * self.count)
        rows = Counter(self._chunk_of)
        for number, chunk in list(self._chunks.items()):
            if number in rows:
                chunk.rows = rows[number]
                self._rewrite_if_half(number)
            else:
                self._stored_bytes -= len(chunk.data)
                del self._chunks[number]


def _is_full(chunk: _Chunk, more: int) -> bool:
    if not chunk.rows:
        return False
    return len(chunk.data) + more > CHUNK_BYTES or chunk.rows >= CHUNK_ROWS


def _selected(rows: "array[int]", live: npt.NDArray[np.bool_]) -> "array[int]":
    return array(rows.typecode, np.frombuffer(rows, f"u{rows.itemsize}")[live].tobytes())
