"""The state of a journal: logs, keys, the id of the last change; and the effects of steps.

Ids are `max(last + 1, stamp of the group's entry)`: one sequence for all changes of a journal, entries of
logs and versions of keys alike. They follow the stamps, so none is used twice, even after an unsafe recovery
that lost the end of the group's log.
"""

from collections.abc import Iterable, Iterator
from typing import Protocol

from nyala.journal import steps
from nyala.journal.changes import Appended, EntriesInvalidated, KeyChanged, RecentChanges
from nyala.journal.digests import folded, key_digest
from nyala.journal.growth import Growth
from nyala.journal.keys import Keys, KeyValue
from nyala.journal.log import NamedLog

RESERVE_BYTES = 64 << 10
"""Size above its limit that a full journal may have by steps that establish leaders."""
MOST_ELECTION_BYTES = 8 << 10
"""Most bytes that such a step adds."""


class Observer(Protocol):
    """Receiver of each change that takes effect, for the next flush."""

    def appended(self, log: NamedLog, entry_id: int, data: bytes) -> None:
        """Receive an entry that was appended.

        Args:
            log: log of the entry, after the change.
            entry_id: id of the entry.
            data: data of the entry.
        """
        ...

    def invalidated(self, log: NamedLog, ids: tuple[int, ...]) -> None:
        """Receive entries that became invalid, perhaps none; `log.last` has changed."""
        ...

    def dropped(self, log: NamedLog) -> None:
        """Receive a log that was deleted."""
        ...

    def key_changed(self, key: str, now: KeyValue | None) -> None:
        """Receive a key that was set or deleted."""
        ...


class JournalState:
    """Content of a journal. Lane APPLY.

    Args:
        observer: receives each change.
        logs: to begin with.
        keys: to begin with.
        last: id of the last change.
        limit_bytes: limit on the size of the valid entries and keys.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        logs: Iterable[NamedLog] = (),
        keys: Iterable[KeyValue] = (),
        last: int = 0,
        limit_bytes: int,
    ) -> None:
        self.observer = observer
        self.logs: dict[str, NamedLog] = {log.name: log for log in logs}
        self.keys = Keys(keys)
        self.last = last
        self.limit_bytes = limit_bytes
        self.recent = RecentChanges(last)
        self._logs_bytes = sum(log.size_bytes for log in self.logs.values())
        self._logs_resident = sum(log.resident_bytes for log in self.logs.values())
        self._entries = sum(len(log.entries) for log in self.logs.values())
        self._digest = sum(log.digest for log in self.logs.values())
        self._digest += sum(
            key_digest(k.key, k.version, k.value) for k in self.keys.starting_with("")
        )

    @property
    def size_bytes(self) -> int:
        """Size that the limit counts, in bytes: valid entries and keys with their overheads."""
        return self.keys.size_bytes + self._logs_bytes

    @property
    def items(self) -> int:
        """Valid entries and keys."""
        return len(self.keys) + self._entries

    @property
    def resident_bytes(self) -> int:
        """Memory of logs, keys and recent changes."""
        return self.keys.resident_bytes + self._logs_resident + self.recent.size_bytes

    @property
    def digest(self) -> int:
        """Sum over all that is valid (`digests`), modulo 2**64."""
        return folded(self._digest)

    def apply(self, step: steps.Step, stamp: int) -> steps.Result:
        """Apply a step, or return the reason why it has no effect.

        Args:
            step: conditions and changes.
            stamp: hybrid time of the group's entry.
        """
        for number, condition in enumerate(step.conditions):
            actual = self._actual(condition)
            if actual != _expected(condition):
                return steps.Failed(number, actual)
        growth = Growth(self.logs, self.keys)
        growth.count(step.changes)
        after = self.size_bytes + growth.added - growth.freed
        limit = self.limit_bytes + (RESERVE_BYTES if _elects(step, growth.added) else 0)
        if growth.added > growth.freed and after > limit:
            return steps.Full(after, self.limit_bytes)
        return steps.Done([self._change(change, stamp) for change in step.changes])

    def _actual(self, condition: steps.Condition) -> int:
        match condition:
            case steps.KeyVersion(key=key):
                found = self.keys.get(key)
                return 0 if found is None else found.version
            case steps.LogLast(log=name):
                log = self.logs.get(name)
                return 0 if log is None else log.last
            case steps.LogCreated(log=name):
                log = self.logs.get(name)
                return 0 if log is None else log.created

    def _change(self, change: steps.Change, stamp: int) -> int:
        """Make one change; return its id, or 0 if there was nothing to change."""
        new_id = max(self.last + 1, stamp)
        match change:
            case steps.Append(log=name, data=data, invalidates=ids):
                log = self.logs.get(name)
                self._uncount(log)
                if log is None:
                    log = self.logs[name] = NamedLog(name, new_id, new_id)
                found = log.invalidate(ids)
                log.append(new_id, data)
                self._count(log)
                self.observer.appended(log, new_id, data)
                self.recent.add(Appended(new_id, log.created))
                if found:
                    self._invalidated(log, new_id, found)
            case steps.Invalidate(log=name, ids=ids):
                log = self.logs.get(name)
                if log is None:
                    return 0
                self._uncount(log)
                log.last = new_id
                found = log.invalidate(ids)
                self._count(log)
                self._invalidated(log, new_id, found)
            case steps.SetKey(key=key, value=value):
                self._set_key(key, KeyValue(key, new_id, value))
                self.recent.add(KeyChanged(new_id, key))
            case steps.DeleteKey(key=key):
                if self.keys.get(key) is None:
                    return 0
                self._set_key(key, None)
                self.recent.add(KeyChanged(new_id, key, deleted=True))
            case steps.DeleteLog(log=name):
                log = self.logs.pop(name, None)
                if log is None:
                    return 0
                self._uncount(log)
                self.observer.dropped(log)
        self.last = new_id
        return new_id

    def _count(self, log: NamedLog) -> None:
        self._logs_bytes += log.size_bytes
        self._logs_resident += log.resident_bytes
        self._entries += len(log.entries)
        self._digest += log.digest

    def _uncount(self, log: NamedLog | None) -> None:
        if log is not None:
            self._logs_bytes -= log.size_bytes
            self._logs_resident -= log.resident_bytes
            self._entries -= len(log.entries)
            self._digest -= log.digest

    def _invalidated(self, log: NamedLog, new_id: int, ids: tuple[int, ...]) -> None:
        self.observer.invalidated(log, ids)
        self.recent.add(EntriesInvalidated(new_id, log.created, ids))

    def _set_key(self, key: str, now: KeyValue | None) -> None:
        old = self.keys.remove(key) if now is None else self.keys.put(now)
        if old is not None:
            self._digest -= key_digest(key, old.version, old.value)
        if now is not None:
            self._digest += key_digest(key, now.version, now.value)
        self.observer.key_changed(key, now)

    def by_name(self) -> Iterator[NamedLog]:
        """Yield the logs by name."""
        for name in sorted(self.logs):
            yield self.logs[name]


def _elects(step: steps.Step, added: int) -> bool:
    """Return whether a step establishes a leader: it sets a key that names one, and adds little."""
    return added <= MOST_ELECTION_BYTES and any(
        isinstance(change, steps.SetKey) and change.key.startswith(steps.LEADER_KEYS)
        for change in step.changes
    )


def _expected(condition: steps.Condition) -> int:
    match condition:
        case steps.KeyVersion(version=expected):
            return expected
        case steps.LogLast(id=expected) | steps.LogCreated(id=expected):
            return expected
