"""Encoded keys as arrays: many keys in one piece of memory, of one width or of several.

What the bytes mean is `keys.py`'s affair; here they are only taken, joined, compared and counted.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.common.hashing import kernels

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]


class KeyBytes:
    """Encoded keys: key i is data[offsets[i]:offsets[i + 1]]. Treat all arrays as read-only.

    Args:
        layout: n + 1 ascending positions, the first of them 0; or one number, the width of every key.
        data: the bytes of all keys, in row order.

    Attributes:
        layout: as given; what the kernels of the tablet take.
        data: as given.
    """

    __slots__ = ("_offsets", "data", "layout")

    def __init__(self, layout: Int64s, data: Bytes) -> None:
        self.layout = layout
        self.data = data
        self._offsets = None if len(layout) == 1 else layout

    @property
    def width(self) -> int:
        """Bytes of every key; 0 if they vary."""
        return int(self.layout[0]) if len(self.layout) == 1 else 0

    @property
    def offsets(self) -> Int64s:
        """Positions as in a layout of n + 1; made on first use where all keys have one width."""
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
        """Return keys of eight bytes as numbers that sort as the keys do; None: they are not such."""
        return self.data.view(">u8").astype(np.uint64) if self.width == 8 else None

    def as_arrow(self) -> pa.LargeBinaryArray:
        """Return the keys as an Arrow array over the same memory; its order is the keys' order."""
        buffers = [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(self), buffers)

    @staticmethod
    def from_arrow(array: pa.LargeBinaryArray) -> "KeyBytes":
        """Return keys that were kept as an Arrow array (no nulls); copies only if it is a slice."""
        assert array.type == pa.large_binary(), f"{array.type}"
        assert array.null_count == 0, f"{array.null_count} nulls"
        offsets, data = string_views(array)
        first = int(offsets[0])
        return KeyBytes(offsets - first if first else offsets, data[first : int(offsets[-1])])


def from_bytes(keys: Sequence[bytes]) -> KeyBytes:
    """Return a few keys given one by one."""
    offsets = offsets_of(np.array([len(k) for k in keys], np.int64))
    return KeyBytes(offsets, np.frombuffer(b"".join(keys), np.uint8))


def concat(parts: Sequence[KeyBytes]) -> KeyBytes:
    """Return the keys of all parts, one part after the other."""
    if not parts:
        return from_bytes(())
    width = parts[0].width
    if width and all(p.width == width for p in parts):
        return KeyBytes(parts[0].layout, np.concatenate([p.data for p in parts]))
    lengths = np.concatenate([np.diff(p.offsets) for p in parts])
    return KeyBytes(offsets_of(lengths), np.concatenate([p.data for p in parts]))


def offsets_of(lengths: Int64s) -> Int64s:
    """Return the positions of pieces of these lengths, one after the other."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def string_views(array: pa.Array) -> tuple[Int64s, Bytes]:
    """Return positions and bytes of an Arrow string array, over its memory."""
    _, offsets, data = array.buffers()
    wide = array.type in (pa.large_binary(), pa.large_string())
    bytes_of = np.frombuffer(data or b"", np.uint8)
    if len(array) == 0 or offsets is None:
        return np.zeros(len(array) + 1, np.int64), bytes_of
    view = np.frombuffer(offsets, np.int64 if wide else np.int32)
    return view[array.offset : array.offset + len(array) + 1].astype(np.int64, copy=False), bytes_of
