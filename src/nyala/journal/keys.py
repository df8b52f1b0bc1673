"""The key space of a journal in memory: values with versions, and their keys in order."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

OVERHEAD_BYTES = 64
"""Overhead of a key in the journal's size, in bytes, beside the key and its value."""
MEMORY_BYTES = 176
"""Memory of a key, in bytes, beside the key and its value."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key.

    Attributes:
        key: text; keys are ordered by their characters' code points, as their UTF-8 is.
        version: id of the change that set it.
        value: bytes.
    """

    key: str
    version: int
    value: bytes

    @property
    def size_bytes(self) -> int:
        """Size that the journal's limit counts, in bytes."""
        return size_of(self.key, self.value)


def size_of(key: str, value: bytes) -> int:
    """Return the size of a key that the journal's limit counts, in bytes."""
    return OVERHEAD_BYTES + len(key.encode()) + len(value)


class Keys:
    """Keys of a journal. Lane APPLY.

    Args:
        found: keys to begin with, each once.
    """

    def __init__(self, found: Iterable[KeyValue] = ()) -> None:
        self._values = {k.key: k for k in found}
        self._order = sorted(self._values)
        self.size_bytes = sum(k.size_bytes for k in self._values.values())

    def __len__(self) -> int:
        return len(self._order)

    @property
    def resident_bytes(self) -> int:
        """Memory of the keys."""
        return self.size_bytes + (MEMORY_BYTES - OVERHEAD_BYTES) * len(self)

    def get(self, key: str) -> KeyValue | None:
        """Return a key, or None."""
        return self._values.get(key)

    def put(self, one: KeyValue) -> KeyValue | None:
        """Set a key; return its state before."""
        old = self._values.get(one.key)
        if old is None:
            insort(self._order, one.key)
        else:
            self.size_bytes -= old.size_bytes
        self._values[one.key] = one
        self.size_bytes += one.size_bytes
        return old

    def remove(self, key: str) -> KeyValue | None:
        """Delete a key; return its state before."""
        old = self._values.pop(key, None)
        if old is not None:
            del self._order[bisect_left(self._order, key)]
            self.size_bytes -= old.size_bytes
        return old

    def starting_with(self, prefix: str, after: str = "") -> Iterator[KeyValue]:
        """Yield the keys with a prefix that are above `after`, in order."""
        at = bisect_left(self._order, max(prefix, after))
        while at < len(self._order) and self._order[at].startswith(prefix):
            if self._order[at] > after or not after:
                yield self._values[self._order[at]]
            at += 1
