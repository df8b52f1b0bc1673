"""One log of a journal: its identity, its last change, its valid entries."""

from collections.abc import Iterable

from nyala.journal.digests import entry_digest, log_digest
from nyala.journal.entries import Entries

ENTRY_OVERHEAD_BYTES = 32
"""Overhead of an entry in the journal's size, in bytes, beside its data."""
LOG_OVERHEAD_BYTES = 256
"""Overhead of a log in the journal's size, in bytes, beside its name and its entries."""
LOG_MEMORY_BYTES = 1_300
"""Memory of a log, in bytes, beside its name and its entries."""


class NamedLog:
    """A log. Lane APPLY.

    Args:
        name: name of the log.
        created: id of the change that created it; a later log of the same name has another.
        last: id of the last change of the log, bare invalidations too.
        entries: its valid entries.
    """

    def __init__(self, name: str, created: int, last: int, entries: Entries | None = None) -> None:
        self.name = name
        self.created = created
        self.last = last
        self.entries = Entries() if entries is None else entries
        self._entries_digest = 0
        if entries is not None:
            for entry_id, data in entries.read(0, last):
                self._entries_digest += entry_digest(created, entry_id, data)

    @property
    def digest(self) -> int:
        """Sum over the log, with its last change, and its valid entries."""
        return log_digest(self.name, self.created, self.last) + self._entries_digest

    @property
    def size_bytes(self) -> int:
        """Size that the journal's limit counts, in bytes."""
        fixed = LOG_OVERHEAD_BYTES + len(self.name.encode())
        return fixed + ENTRY_OVERHEAD_BYTES * len(self.entries) + self.entries.data_bytes

    @property
    def resident_bytes(self) -> int:
        """Memory of the log."""
        return LOG_MEMORY_BYTES + len(self.name) + self.entries.resident_bytes

    def append(self, entry_id: int, data: bytes) -> None:
        """Append an entry."""
        self.entries.append(entry_id, data)
        self.last = entry_id
        self._entries_digest += entry_digest(self.created, entry_id, data)

    def invalidate(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Take entries out; return the ids of those that were valid."""
        found = []
        for entry_id in ids:
            data = self.entries.invalidate(entry_id)
            if data is not None:
                self._entries_digest -= entry_digest(self.created, entry_id, data)
                found.append(entry_id)
        return tuple(found)
