"""The newest changes of a journal in memory, for readers that follow it: tails of logs, watches of keys.

They are not replicated: a replica that has just started knows the changes that it has applied since its flush
point. A reader that has seen less reads all valid content instead.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter

KEPT = 1 << 16
"""Changes that are kept; twice as many at most."""
KEPT_BYTES = 16 << 20
"""Memory of the changes that are kept, in bytes; twice as much at most, beside that of one change."""
_APPENDED_BYTES = 16
"""Memory of an append, in bytes."""
_CHANGE_BYTES = 112
"""Memory of another change beside its ids or its key, in bytes."""
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
    """Changes in the order of their ids; appends, which are most, have no objects. Lane APPLY.

    Args:
        floor: all changes with ids above it are known.

    Attributes:
        size_bytes: memory of the changes, in bytes.
    """

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self._ids = array("Q")
        self._logs = array("Q")  # of appends; 0: the change is in `_others`
        self._others: list[EntriesInvalidated | KeyChanged] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, change: RecentChange) -> None:
        """Add the newest change; forget the oldest, if there are too many."""
        self._ids.append(change.id)
        if isinstance(change, Appended):
            self._logs.append(change.log)
        else:
            self._logs.append(0)
            self._others.append(change)
        self.size_bytes += _size_of(change)
        if len(self._ids) >= 2 * KEPT or self.size_bytes > 2 * KEPT_BYTES:
            self._forget()

    def _forget(self) -> None:
        first = max(0, len(self._ids) - KEPT)
        first_other = self._logs[:first].count(0)
        size = sum(map(_size_of, self._from(first, first_other)))
        for change in self._from(first, first_other):
            if size <= KEPT_BYTES:
                break
            size -= _size_of(change)
            first += 1
        self.floor = self._ids[first - 1]
        del self._others[: self._logs[:first].count(0)]
        del self._ids[:first], self._logs[:first]
        self.size_bytes = size

    def after(self, after: int) -> Iterator[RecentChange]:
        """Yield all changes with ids above one that is not below the floor."""
        assert after >= self.floor, f"changes after {after} are known from {self.floor} on only"
        return self._from(
            bisect_right(self._ids, after), bisect_right(self._others, after, key=_id_of)
        )

    def _from(self, first: int, first_other: int) -> Iterator[RecentChange]:
        """Yield all changes from two positions on, in `_ids` and in `_others`."""
        others = islice(self._others, first_other, None)
        for at in range(first, len(self._ids)):
            log = self._logs[at]
            yield Appended(self._ids[at], log) if log else next(others)


def _size_of(change: RecentChange) -> int:
    """Return the memory of a change, in bytes."""
    match change:
        case EntriesInvalidated(ids=ids):
            return _CHANGE_BYTES + _ID_BYTES * len(ids)
        case KeyChanged(key=key):
            return _CHANGE_BYTES + len(key)
        case _:
            return _APPENDED_BYTES
