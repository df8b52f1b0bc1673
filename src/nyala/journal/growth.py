"""Bytes that a step adds to a journal and frees, counted before it takes effect."""

from collections.abc import Iterable, Mapping

from nyala.journal import steps
from nyala.journal.keys import Keys, size_of
from nyala.journal.log import ENTRY_OVERHEAD_BYTES, LOG_OVERHEAD_BYTES, NamedLog


class Growth:
    """Bytes that the changes of one step add and free. Lane APPLY.

    An entry that a step appends and that later changes of the step take away counts as added.

    Args:
        logs: logs before the step.
        keys: keys before the step.

    Attributes:
        added: bytes of new entries, logs and values.
        freed: bytes of the valid entries, logs and values that the step removes.
    """

    def __init__(self, logs: Mapping[str, NamedLog], keys: Keys) -> None:
        self.added = self.freed = 0
        self._logs = logs
        self._keys = keys
        self._values: dict[str, int] = {}
        self._invalidated: set[tuple[str, int]] = set()
        self._dropped: set[str] = set()
        self._created: set[str] = set()

    def count(self, changes: Iterable[steps.Change]) -> None:
        """Count changes, in their order."""
        for change in changes:
            match change:
                case steps.Append(log=name, data=data, invalidates=ids):
                    self.added += ENTRY_OVERHEAD_BYTES + len(data)
                    if not self._exists(name) and name not in self._created:
                        self.added += LOG_OVERHEAD_BYTES + len(name.encode())
                        self._created.add(name)
                    self._invalidate(name, ids)
                case steps.Invalidate(log=name, ids=ids):
                    self._invalidate(name, ids)
                case steps.SetKey(key=key, value=value):
                    self._replace_key(key, size_of(key, value))
                case steps.DeleteKey(key=key):
                    self._replace_key(key, 0)
                case steps.DeleteLog(log=name):
                    self._drop(name)

    def _exists(self, name: str) -> bool:
        return name in self._logs and name not in self._dropped

    def _invalidate(self, name: str, ids: Iterable[int]) -> None:
        if self._exists(name):
            fresh = {(name, entry_id) for entry_id in ids} - self._invalidated
            self._invalidated |= fresh
            self.freed += sum(self._entry_size(*entry) for entry in fresh)

    def _drop(self, name: str) -> None:
        if self._exists(name):
            freed_before = sum(
                self._entry_size(*entry) for entry in self._invalidated if entry[0] == name
            )
            self.freed += self._logs[name].size_bytes - freed_before
            self._dropped.add(name)

    def _replace_key(self, key: str, size_bytes: int) -> None:
        if key not in self._values:
            before = self._keys.get(key)
            self._values[key] = 0 if before is None else before.size_bytes
        self.freed += self._values[key]
        self.added += size_bytes
        self._values[key] = size_bytes

    def _entry_size(self, name: str, entry_id: int) -> int:
        size = self._logs[name].entries.size_of(entry_id)
        return 0 if size is None else ENTRY_OVERHEAD_BYTES + size
