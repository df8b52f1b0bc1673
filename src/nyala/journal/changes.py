"""The newest changes of a journal in memory, for readers that follow it: tails of logs, watches of keys.

They are not replicated: a replica that has just started knows the changes that it has applied since its flush
point. A reader that has seen less reads all valid content instead.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

KEPT = 1 << 16
"""Changes that are kept; twice as many at most."""
KEPT_BYTES = 16 << 20
"""Memory of the changes that are kept, in bytes; twice as much at most, beside that of one change."""
_CHANGE_BYTES = 96
"""Memory of a change beside its ids or its key, in bytes."""
_ID_BYTES = 40
"""Memory of an id of an invalidated entry, in bytes."""


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry was appended to the log that was created by change `log`."""

    id: int
    log: int


@dataclass(frozen=True, slots=True)
class EntriesInvalidated:
    """Entries of a log became invalid.

    Attributes:
        id: id of the change.
        log: id of the change that created the log.
        ids: ids of the entries.
    """

    id: int
    log: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeyChanged:
    """A key was set, or deleted, by change `id`."""

    id: int
    key: str
    deleted: bool = False


RecentChange = Appended | EntriesInvalidated | KeyChanged
_id_of = attrgetter("id")


class RecentChanges:
    """Changes in the order of their ids. Lane APPLY.

    Args:
        floor: all changes with ids above it are known.

    Attributes:
        size_bytes: memory of the changes, in bytes.
    """

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self._changes: list[RecentChange] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, change: RecentChange) -> None:
        """Add the newest change; forget the oldest, if there are too many."""
        self._changes.append(change)
        self.size_bytes += _size_of(change)
        if len(self._changes) >= 2 * KEPT or self.size_bytes > 2 * KEPT_BYTES:
            self._forget()

    def _forget(self) -> None:
        first = max(0, len(self._changes) - KEPT)
        size = sum(map(_size_of, self._changes[first:]))
        while size > KEPT_BYTES:
            size -= _size_of(self._changes[first])
            first += 1
        self.floor = self._changes[first - 1].id
        del self._changes[:first]
        self.size_bytes = size

    def after(self, after: int) -> Iterator[RecentChange]:
        """Yield all changes with ids above one that is not below the floor."""
        assert after >= self.floor, f"changes after {after} are known from {self.floor} on only"
        for at in range(bisect_right(self._changes, after, key=_id_of), len(self._changes)):
            yield self._changes[at]


def _size_of(change: RecentChange) -> int:
    """Return the memory of a change, in bytes."""
    match change:
        case EntriesInvalidated(ids=ids):
            return _CHANGE_BYTES + _ID_BYTES * len(ids)
        case KeyChanged(key=key):
            return _CHANGE_BYTES + len(key)
        case _:
            return _CHANGE_BYTES
