"""The valid entries of one log in memory: chunks of arrays and data; no object per entry.

An entry costs 12 bytes beside its data, 13 in a chunk that has invalid ones. Invalid entries leave their rows
and bytes behind until they are half of a chunk; then its valid entries are moved together, and into the chunk
beside it if both are small: memory follows the valid entries, at a constant cost for each change. A row
counts as 32 bytes of its chunk, so that many small entries are not moved for a few bytes. No array spans all
entries, and a full chunk has no room for more: growing arrays leave as much free memory behind as they take.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, compress
from operator import attrgetter

import numpy as np
import numpy.typing as npt

CHUNK_BYTES = 1 << 20
"""Data of one chunk, in bytes; one larger entry has a chunk of its own."""
CHUNK_ROWS = 1 << 14
"""Entries of one chunk."""
_ROW_BYTES = 32
"""Cost of moving a row, in bytes of data."""


Run = tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32], memoryview]
"""Ids of entries, lengths of their data, and the data of all of them."""


class _Chunk:
    """Consecutive entries, valid and not.

    Attributes:
        first: id; the ids of the chunk are not below it, and those of the chunks before are.
        ids: id of each row.
        ends: end of each row's data, which begins where that of the row before ends.
        data: data of all rows.
        valid: a byte for each row, 0: invalid; None: all are valid.
        count: number of valid entries.
        valid_bytes: size of their data, in bytes.
    """

    __slots__ = ("count", "data", "ends", "first", "ids", "valid", "valid_bytes")

    def __init__(
        self, ids: "array[int]", ends: "array[int]", data: bytearray, first: int | None = None
    ) -> None:
        self.first = ids[0] if first is None else first
        self.ids = ids
        self.ends = ends
        self.data = data
        self.valid: bytearray | None = None
        self.count = len(ids)
        self.valid_bytes = len(data)

    @property
    def resident_bytes(self) -> int:
        """Memory of the rows and their data."""
        row_bytes = self.ids.itemsize + self.ends.itemsize
        flags = 0 if self.valid is None else len(self.valid)
        return row_bytes * len(self.ids) + flags + len(self.data)

    def append(self, entry_id: int, data: bytes) -> None:
        self.ids.append(entry_id)
        self.data += data
        self.ends.append(len(self.data))
        if self.valid is not None:
            self.valid.append(1)
        self.count += 1
        self.valid_bytes += len(data)

    def is_full(self, more: int) -> bool:
        """Return whether it takes no entry of so many bytes."""
        if not self.ids:
            return False
        return len(self.data) + more > CHUNK_BYTES or len(self.ids) >= CHUNK_ROWS

    def row_of(self, entry_id: int) -> int | None:
        """Return the row of a valid entry; None: it has none."""
        row = bisect_left(self.ids, entry_id)
        if row == len(self.ids) or self.ids[row] != entry_id:
            return None
        return None if self.valid is not None and not self.valid[row] else row

    def size_of(self, row: int) -> int:
        return self.ends[row] - (self.ends[row - 1] if row else 0)

    def data_of(self, row: int) -> bytes:
        return bytes(self.data[self.ends[row - 1] if row else 0 : self.ends[row]])

    def invalidate(self, row: int) -> None:
        if self.valid is None:
            self.valid = bytearray(b"\x01" * len(self.ids))
        self.valid[row] = 0
        self.count -= 1
        self.valid_bytes -= self.size_of(row)

    def is_half_invalid(self) -> bool:
        """Return whether moving its valid entries together is worth its cost."""
        cost = self.valid_bytes + _ROW_BYTES * self.count
        return len(self.data) + _ROW_BYTES * len(self.ids) >= 2 * cost

    def moved_together(self) -> "_Chunk":
        """Return a chunk of the valid entries."""
        if self.valid is None:
            return _Chunk(self.ids[:], self.ends[:], bytearray(self.data), self.first)
        rows = [*compress(range(len(self.ids)), self.valid)]
        starts, data = [0, *self.ends[:-1]], memoryview(self.data)
        lengths = [self.ends[row] - starts[row] for row in rows]
        return _Chunk(
            array("Q", compress(self.ids, self.valid))[:],
            array("I", accumulate(lengths))[:],
            bytearray().join([data[starts[row] : self.ends[row]] for row in rows]),
            self.first,
        )


_first_of = attrgetter("first")


class Entries:
    """Valid entries in the order of their ids. Lane APPLY.

    Attributes:
        count: number of entries.
        data_bytes: size of their data, in bytes.
        resident_bytes: memory of the entries, valid and not, without the unused part of the newest chunk.
    """

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self.count = 0
        self.data_bytes = 0
        self.resident_bytes = 0

    def __len__(self) -> int:
        return self.count

    def append(self, entry_id: int, data: bytes) -> None:
        """Add an entry with an id above all others."""
        newest = self._chunks[-1] if self._chunks else None
        if newest is None or newest.is_full(len(data)):
            if newest is not None:
                self._replace(len(self._chunks) - 1, newest.moved_together())
            newest = _Chunk(array("Q"), array("I"), bytearray(), entry_id)
            self._chunks.append(newest)
        assert not newest.ids or entry_id > newest.ids[-1], f"entry {entry_id} out of order"
        self.resident_bytes -= newest.resident_bytes
        newest.append(entry_id, data)
        self.resident_bytes += newest.resident_bytes
        self.count += 1
        self.data_bytes += len(data)

    def extend(self, runs: Iterable[Run]) -> None:
        """Add entries, whose data lies one after the other in each run; ids grow, above all others."""
        for ids, lengths, data in runs:
            ends = np.cumsum(lengths, dtype=np.int64)
            first = start = 0
            while first < len(ids):
                fits = int(np.searchsorted(ends, start + CHUNK_BYTES, side="right"))
                last = max(first + 1, min(fits, first + CHUNK_ROWS))
                end = int(ends[last - 1])
                made = _Chunk(
                    _exact("Q", ids[first:last].astype(np.uint64)),
                    _exact("I", (ends[first:last] - start).astype(np.uint32)),
                    bytearray(data[start:end]),
                )
                assert not self._chunks or made.first > self._newest_id(), "entries out of order"
                self._chunks.append(made)
                self.resident_bytes += made.resident_bytes
                first, start = last, end
            self.count += len(ids)
            self.data_bytes += start

    def _newest_id(self) -> int:
        newest = self._chunks[-1]
        return newest.ids[-1] if newest.ids else newest.first

    def invalidate(self, entry_id: int) -> bytes | None:
        """Take an entry out; return its data, or None if it is not a valid entry."""
        at = self._chunk_at(entry_id)
        chunk, row = self._found(at, entry_id)
        if chunk is None or row is None:
            return None
        data = chunk.data_of(row)
        self.resident_bytes -= chunk.resident_bytes
        chunk.invalidate(row)
        self.resident_bytes += chunk.resident_bytes
        self.count -= 1
        self.data_bytes -= len(data)
        if chunk.is_half_invalid():
            self._shrink(at)
        return data

    def size_of(self, entry_id: int) -> int | None:
        """Return the bytes of an entry's data; None: not a valid entry."""
        chunk, row = self._found(self._chunk_at(entry_id), entry_id)
        return None if chunk is None or row is None else chunk.size_of(row)

    def get(self, entry_id: int) -> bytes | None:
        """Return the data of an entry; None: not a valid entry."""
        chunk, row = self._found(self._chunk_at(entry_id), entry_id)
        return None if chunk is None or row is None else chunk.data_of(row)

    def read(self, after: int, through: int) -> Iterator[tuple[int, bytes]]:
        """Yield id and data of the valid entries with `after` < id <= `through`, in order."""
        for at in range(max(0, self._chunk_at(after)), len(self._chunks)):
            chunk = self._chunks[at]
            if chunk.first > through:
                return
            for row in range(bisect_right(chunk.ids, after), bisect_right(chunk.ids, through)):
                if chunk.valid is None or chunk.valid[row]:
                    yield chunk.ids[row], chunk.data_of(row)

    def _chunk_at(self, entry_id: int) -> int:
        """Return the position of the chunk that may have an entry; -1: none may."""
        return bisect_right(self._chunks, entry_id, key=_first_of) - 1

    def _found(self, at: int, entry_id: int) -> tuple[_Chunk | None, int | None]:
        """Return the chunk at a position and the row of a valid entry there."""
        chunk = self._chunks[at] if at >= 0 else None
        return chunk, None if chunk is None else chunk.row_of(entry_id)

    def _shrink(self, at: int) -> None:
        """Move the valid entries of a chunk together, and those of a small chunk beside it to them."""
        chunk = self._chunks[at]
        if not chunk.count:
            self._replace(at)
            return
        self._replace(at, chunk.moved_together())
        if at + 1 < len(self._chunks):  # the newest chunk is not worth it: it grows
            for first in (at, at - 1):
                if 0 <= first < len(self._chunks) - 2 and self._are_small(first):
                    joined = _joined(self._chunks[first], self._chunks[first + 1])
                    self._replace(first)
                    self._replace(first, joined)

    def _are_small(self, at: int) -> bool:
        """Return whether two chunks together fill half of one at most."""
        one, two = self._chunks[at], self._chunks[at + 1]
        return (
            2 * (len(one.data) + len(two.data)) <= CHUNK_BYTES
            and 2 * (len(one.ids) + len(two.ids)) <= CHUNK_ROWS
        )

    def _replace(self, at: int, *made: _Chunk) -> None:
        """Replace a chunk by another, or by none."""
        self.resident_bytes -= self._chunks[at].resident_bytes
        self._chunks[at : at + 1] = made
        self.resident_bytes += sum(chunk.resident_bytes for chunk in made)


def _exact(kind: str, values: npt.NDArray[np.uint64] | npt.NDArray[np.uint32]) -> "array[int]":
    """Return an array of some values, without room for more."""
    return array(kind, values.tobytes())[:]


def _joined(one: _Chunk, two: _Chunk) -> _Chunk:
    """Return a chunk of the valid entries of two."""
    first, then = one.moved_together(), two.moved_together()
    end = len(first.data)
    ids, ends = first.ids + then.ids, array("I", [end + e for e in then.ends])
    return _Chunk(ids, first.ends + ends, bytearray().join((first.data, then.data)), first.first)
