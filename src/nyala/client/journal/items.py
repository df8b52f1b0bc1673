"""Items that reads and tails of journals return."""

from dataclasses import dataclass, field
from datetime import datetime

from nyala.common.hybrid_time import to_datetime


def moment_of(change_id: int) -> datetime:
    """Return the time of a change, to the microsecond; ids follow the hybrid time of the changes."""
    return to_datetime(change_id)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """A valid entry of a log.

    Attributes:
        id: grows within a journal, and is never used twice.
        data: as it was appended.
        complete: False: the next event of the tail has the same id, so that a reader that stores the id now,
            and resumes after it, would miss that.
    """

    id: int
    data: bytes
    complete: bool = field(default=True, compare=False, repr=False)

    @property
    def timestamp(self) -> datetime:
        """Time of the append, in UTC."""
        return moment_of(self.id)


@dataclass(frozen=True, slots=True)
class Invalidated:
    """Entries of a log became invalid.

    Attributes:
        ids: ids of the entries; a reader that began later, or was rebased, may not have seen them.
        id: id of the change; that of the entry, if an append invalidated them.
        complete: as for `JournalEntry`.
    """

    ids: tuple[int, ...]
    id: int
    complete: bool = field(default=True, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Rebased:
    """The changes since the reader's position are not all known any more.

    The reader drops what it holds; all that is valid follows, and then what changes later.

    Attributes:
        through: id of the last change that what follows includes.
    """

    through: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A watch has reported all keys: what the reader holds is the state as of `through`.

    That state includes every change that was acknowledged before the watch began, or was rebased.

    Attributes:
        through: id after which the watch can be resumed.
    """

    through: int


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a journal.

    Attributes:
        name: name of the key.
        value: None: it was deleted (events of `Journal.watch` only).
        version: id of the change that set, or deleted, it.
    """

    name: str
    value: bytes | None
    version: int

    @property
    def timestamp(self) -> datetime:
        """Time of the change, in UTC."""
        return moment_of(self.version)


@dataclass(frozen=True, slots=True)
class LogSummary:
    """A log of a journal.

    Attributes:
        name: name of the log.
        created: id of the change that created it.
        last: id of its last change.
        entries: number of its valid entries.
        data_bytes: their data.
    """

    name: str
    created: int
    last: int
    entries: int
    data_bytes: int


Entry = JournalEntry
"""Public name of `JournalEntry`."""
Event = Entry | Invalidated | Rebased
"""Event of a log's tail."""
KeyEvent = Key | Rebased | Synced
"""Event of a watch of keys."""
