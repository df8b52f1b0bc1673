"""Encoded keys as arrays: many keys in one buffer, of fixed or variable width.

This module only selects, concatenates and counts keys; `encoding.py` has the encoding.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.keys.hashing import kernels

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class KeyBytes:
    """Encoded keys: key i is data[offsets[i]:offsets[i + 1]]. All arrays are read-only.

    Args:
        layout: n + 1 ascending offsets, the first one 0; or a single number, the width of every key.
        data: bytes of all keys, in row order.

    Attributes:
        layout: as passed in; an argument of the tablet's kernels.
        data: as passed in.
    """

    __slots__ = ("_offsets", "data", "layout")

    def __init__(self, layout: Int64s, data: Bytes) -> None:
        self.layout = layout
        self.data = data
        self._offsets = None if len(layout) == 1 else layout

    @property
    def width(self) -> int:
        """Width of every key in bytes; 0: it varies."""
        return int(self.layout[0]) if len(self.layout) == 1 else 0

    @property
    def offsets(self) -> Int64s:
        """The n + 1 offsets; computed on first use if all keys have one width."""
        if self._offsets is None:
            self._offsets = np.arange(0, len(self.data) + 1, max(self.width, 1), dtype=np.int64)
        return self._offsets

    def __len__(self) -> int:
        if len(self.layout) > 1:
            return len(self.layout) - 1
        width = self.width
        return len(self.data) // width if width else 0

    def key_at(self, row: int) -> bytes:
        """Return one key."""
        width = self.width
        if width:
            return self.data[row * width : (row + 1) * width].tobytes()
        return self.data[self.layout[row] : self.layout[row + 1]].tobytes()

    def take(self, rows: npt.ArrayLike) -> "KeyBytes":
        """Return the keys of these rows, in this order."""
        index = np.asarray(rows, np.int64)
        width = self.width
        if width == 8:
            return KeyBytes(self.layout, self.data.view(np.uint64)[index].view(np.uint8))
        if width:
            return KeyBytes(self.layout, self.data.reshape(-1, width)[index].reshape(-1))
        starts, ends = self.offsets[:-1][index], self.offsets[1:][index]
        offsets = offsets_of(ends - starts)
        data = np.empty(int(offsets[-1]), np.uint8)
        kernels().copy_ranges(self.data, starts, ends, offsets[:-1], data)
        return KeyBytes(offsets, data)

    def words(self) -> npt.NDArray[np.uint64] | None:
        """Return 8-byte keys as numbers with the same order; None: the width is another."""
        return self.data.view(">u8").astype(np.uint64) if self.width == 8 else None

    def as_arrow(self) -> pa.LargeBinaryArray:
        """Return the keys as an Arrow array on the same memory, with the same order."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)

    @staticmethod
    def from_arrow(array: pa.LargeBinaryArray) -> "KeyBytes":
        """Return the keys of an Arrow array without nulls; only a slice is copied."""
        assert array.type == pa.large_binary(), f"{array.type}"
        assert array.null_count == 0, f"{array.null_count} nulls"
        offsets, data = string_views(array)
        first = int(offsets[0])
        return KeyBytes(offsets - first if first else offsets, data[first : int(offsets[-1])])


def from_bytes(keys: Sequence[bytes]) -> KeyBytes:
    """Return keys from a sequence."""
    offsets = offsets_of(np.array([len(k) for k in keys], np.int64))
    return KeyBytes(offsets, np.frombuffer(b"".join(keys), np.uint8))


def concat(parts: Sequence[KeyBytes]) -> KeyBytes:
    """Concatenate keys."""
    if not parts:
        return from_bytes(())
    width = parts[0].width
    if width and all(p.width == width for p in parts):
        return KeyBytes(parts[0].layout, np.concatenate([p.data for p in parts]))
    lengths = np.concatenate([np.diff(p.offsets) for p in parts])
    return KeyBytes(offsets_of(lengths), np.concatenate([p.data for p in parts]))


def offsets_of(lengths: Int64s) -> Int64s:
    """Return the offsets of consecutive pieces with these lengths."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def string_views(array: pa.Array) -> tuple[Int64s, Bytes]:
    """Return offsets and bytes of an Arrow string array, on its memory."""
    _, offsets, data = array.buffers()
    wide = array.type in (pa.large_binary(), pa.large_string())
    bytes_of = np.frombuffer(data or b"", np.uint8)
    if len(array) == 0 or offsets is None:
        return np.zeros(len(array) + 1, np.int64), bytes_of
    view = np.frombuffer(offsets, np.int64 if wide else np.int32)
    return view[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False), bytes_of
