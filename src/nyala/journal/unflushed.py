"""Changes since the last flush point, which the next flush writes."""

from collections.abc import Iterator

from nyala.journal.data_file import DataFileWriter, DeletedKey, LogRecord, in_parts
from nyala.journal.keys import KeyValue
from nyala.journal.log import NamedLog

_CHANGE_BYTES = 128
"""Memory of a change beside its data, in bytes."""


class Unflushed:
    """Changes of logs and keys; an `Observer` of the journal's state. Lane APPLY.

    Changes that were undone before the flush are not written, such as an entry that was invalidated since.

    Attributes:
        size_bytes: size of the memory that a flush frees.
    """

    def __init__(self) -> None:
        self._logs: dict[int, LogRecord] = {}
        self._created: dict[int, None] = {}
        self._dropped: dict[int, None] = {}
        self._entries: dict[int, dict[int, bytes]] = {}
        self._invalid: dict[tuple[int, int], None] = {}
        self._keys: dict[str, KeyValue | DeletedKey] = {}
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._logs or self._dropped or self._keys)

    def appended(self, log: NamedLog, entry_id: int, data: bytes) -> None:
        """Keep an entry.

        Args:
            log: log of the entry.
            entry_id: id of the entry.
            data: data of the entry.
        """
        if log.created == entry_id:
            self._created[log.created] = None
        self._note(log)
        self._entries.setdefault(log.created, {})[entry_id] = data
        self.size_bytes += _CHANGE_BYTES + len(data)

    def invalidated(self, log: NamedLog, ids: tuple[int, ...]) -> None:
        """Forget entries that are not in a file; keep the ids of those that are."""
        self._note(log)
        self._invalidate(log.created, ids)

    def dropped(self, log: NamedLog) -> None:
        """Forget a log; keep its id if a file has it."""
        self._drop(log.created)

    def key_changed(self, key: str, now: KeyValue | None) -> None:
        """Keep a key's newest state."""
        old = self._keys.get(key)
        if isinstance(old, KeyValue):
            self.size_bytes -= len(old.value)
        if old is None:
            self.size_bytes += _CHANGE_BYTES
        self._keys[key] = DeletedKey(key) if now is None else now
        self.size_bytes += 0 if now is None else len(now.value)

    def absorb(self, newer: "Unflushed") -> None:
        """Add the changes that came after these."""
        for created in newer._dropped:
            self._drop(created)
        for record in newer._logs.values():
            self._put(record)
        self._created |= newer._created
        for created, ids in _by_log(newer._invalid):
            self._invalidate(created, ids)
        for created, entries in newer._entries.items():
            self._entries.setdefault(created, {}).update(entries)
            self.size_bytes += sum(_CHANGE_BYTES + len(data) for data in entries.values())
        for key, now in newer._keys.items():
            self.key_changed(key, now if isinstance(now, KeyValue) else None)

    def write(self, writer: DataFileWriter) -> int:
        """Write all of it and make it durable; return the file's length in bytes. Lane COMPUTE."""
        for created in sorted(self._entries):
            for part in in_parts(created, self._entries[created].items()):
                writer.add_part(part)
        for key in sorted(self._keys):
            writer.add_key(self._keys[key])
        logs = [self._logs[created] for created in sorted(self._logs)]
        return writer.finish(logs, sorted(self._dropped), sorted(self._invalid))

    def _note(self, log: NamedLog) -> None:
        self._put(LogRecord(log.created, log.name, log.last))

    def _put(self, record: LogRecord) -> None:
        if record.created not in self._logs:
            self.size_bytes += _CHANGE_BYTES
        self._logs[record.created] = record

    def _invalidate(self, created: int, ids: tuple[int, ...]) -> None:
        entries = self._entries.get(created, {})
        for entry_id in ids:
            data = entries.pop(entry_id, None)
            if data is not None:
                self.size_bytes -= _CHANGE_BYTES + len(data)
            else:
                self._invalid[created, entry_id] = None
                self.size_bytes += _CHANGE_BYTES

    def _drop(self, created: int) -> None:
        for data in self._entries.pop(created, {}).values():
            self.size_bytes -= _CHANGE_BYTES + len(data)
        for pair in [p for p in self._invalid if p[0] == created]:
            del self._invalid[pair]
            self.size_bytes -= _CHANGE_BYTES
        if self._logs.pop(created, None) is not None:
            self.size_bytes -= _CHANGE_BYTES
        if created in self._created:
            del self._created[created]
        else:
            self._dropped[created] = None
            self.size_bytes += _CHANGE_BYTES


def _by_log(invalid: dict[tuple[int, int], None]) -> Iterator[tuple[int, tuple[int, ...]]]:
    for created, entry_id in invalid:
        yield created, (entry_id,)
