"""Pages of a journal's state, and what changed after an id. Lane APPLY: a page is of one state."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nyala.common.errors import LogGone, Unavailable
from nyala.journal.changes import Appended, EntriesInvalidated, KeyChanged, RecentChange
from nyala.journal.keys import KeyValue
from nyala.journal.log import NamedLog
from nyala.journal.state import JournalState

PAGE_BYTES = 1 << 20
"""Data of one page; one larger entry is a page of its own."""
PAGE_ITEMS = 10_000
"""Entries, keys or logs of one page."""
_EVENT_BYTES = 64
"""Bytes of an event in an answer beside its data, at most."""
_ID_BYTES = 10
"""Bytes of an id in an answer, at most."""


@dataclass(slots=True)
class LogPage:
    """Valid entries of a log, in the order of their ids.

    Attributes:
        created: id of the change that created the log; 0: there is no such log.
        last: id of the log's last change.
        entries: id and data of each.
        more: more follow after them.
    """

    created: int = 0
    last: int = 0
    entries: list[tuple[int, bytes]] = field(default_factory=list)
    more: bool = False


@dataclass(slots=True)
class KeyPage:
    """Keys in order.

    Attributes:
        keys: with their values.
        more: more follow after them.
    """

    keys: list[KeyValue] = field(default_factory=list)
    more: bool = False


@dataclass(slots=True)
class ContentPage:
    """Logs by name, each with valid entries in the order of their ids.

    Attributes:
        logs: each with id and data of its entries on this page.
        more: more entries or logs follow after the last of them.
    """

    logs: list[tuple[NamedLog, list[tuple[int, bytes]]]] = field(default_factory=list)
    more: bool = False


@dataclass(frozen=True, slots=True)
class InvalidatedEntries:
    """Entries became invalid by change `id`."""

    id: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeletedKeyEvent:
    """A key was deleted by change `id`."""

    id: int
    key: str


Event = tuple[int, bytes] | InvalidatedEntries | KeyValue | DeletedKeyEvent
"""Event of a tail: a valid entry, entries that became invalid, a key's value, a deleted key."""


@dataclass(slots=True)
class TailPage:
    """Changes after an id.

    Attributes:
        rebased: changes after the id are not all known here: the reader drops what it holds, and reads what
            is valid up to `through` instead.
        events: in the order of their ids.
        through: the next request begins after this id.
        created: id of the change that created the log; 0: there is none, or keys are watched.
        more: changes after `through` are applied here already, and may have replaced some up to it.
    """

    through: int
    rebased: bool = False
    events: list[Event] = field(default_factory=list)
    created: int = 0
    more: bool = False


def check_least(state: JournalState, least: int) -> None:
    """Refuse a read of more than has been applied here.

    Raises:
        Unavailable: this replica is behind.
    """
    if state.last < least:
        raise Unavailable(
            f"this replica has applied changes up to {state.last}, and the read asks for {least}; "
            "retry, or read from another replica"
        )


def find_log(state: JournalState, name: str, created: int) -> NamedLog | None:
    """Return a log; None: there is none yet.

    Args:
        state: state of the journal.
        name: name of the log.
        created: id of its creation, as the reader knows it; 0: it does not.

    Raises:
        LogGone: the log that the reader knows was deleted.
    """
    log = state.logs.get(name)
    if created and (log is None or log.created != created):
        again = "" if log is None else f"; another one was created with id {log.created}"
        raise LogGone(
            f"the log {name!r} that was created with id {created} was deleted{again}; open it anew",
            {
                "log": name,
                "created": str(0 if log is None else log.created),
                "last": str(state.last),
            },
        )
    return log


def log_page(
    state: JournalState, name: str, created: int, after: int, through: int, limit: int
) -> LogPage:
    """Return valid entries of a log.

    Args:
        state: state of the journal.
        name: name of the log.
        created: see `find_log`.
        after: entries with higher ids only.
        through: entries with ids up to it; 0: all.
        limit: maximum number of entries; 0: as many as fit a page.
    """
    log = find_log(state, name, created)
    if log is None:
        return LogPage()
    page = LogPage(log.created, log.last)
    size, most = 0, min(limit or PAGE_ITEMS, PAGE_ITEMS)
    for entry_id, data in log.entries.read(after, through or log.last):
        if len(page.entries) == most or (page.entries and size + len(data) > PAGE_BYTES):
            page.more = True
            break
        page.entries.append((entry_id, data))
        size += len(data)
    return page


def key_page(state: JournalState, prefix: str, after: str, limit: int) -> KeyPage:
    """Return keys with a prefix, in order.

    Args:
        state: state of the journal.
        prefix: prefix of the keys.
        after: keys above it only; empty: all.
        limit: maximum number of keys; 0: as many as fit a page.
    """
    page = KeyPage()
    size, most = 0, min(limit or PAGE_ITEMS, PAGE_ITEMS)
    for key in state.keys.starting_with(prefix, after):
        if len(page.keys) == most or (page.keys and size + key.size_bytes > PAGE_BYTES):
            page.more = True
            break
        page.keys.append(key)
        size += key.size_bytes
    return page


def logs_page(state: JournalState, after: str, limit: int) -> tuple[list[NamedLog], bool]:
    """Return logs by name, and whether there are more.

    Args:
        state: state of the journal.
        after: logs with names above it only; empty: all.
        limit: maximum number of logs; 0: as many as fit a page.
    """
    most = min(limit or PAGE_ITEMS, PAGE_ITEMS)
    found = [log for log in state.by_name() if log.name > after]
    return found[:most], len(found) > most


def content_page(state: JournalState, name: str, after: int, limit: int) -> ContentPage:
    """Return logs with their valid entries, as many as fit; a log without entries is on one page.

    Args:
        state: state of the journal.
        name: the page begins with this log's entries; empty: with the first log.
        after: entries of that log with higher ids only; logs after it are whole.
        limit: maximum number of entries and of logs without any; 0: as many as fit a page.
    """
    page, size, items = ContentPage(), 0, 0
    most = min(limit or PAGE_ITEMS, PAGE_ITEMS)
    for log in state.by_name():
        if log.name < name:
            continue
        part: list[tuple[int, bytes]] = []
        entries = log.entries.read(after if log.name == name else 0, log.last)
        found: Iterator[tuple[int, bytes] | None] = iter(entries)
        if not len(log.entries) and log.name != name:
            found = iter((None,))
        for entry in found:
            more_bytes = (0 if part else len(log.name)) + (len(entry[1]) if entry else 0)
            if items and (items == most or size + more_bytes > PAGE_BYTES):
                page.more = True
                break
            if not part:
                page.logs.append((log, part))
            if entry:
                part.append(entry)
            items += 1
            size += more_bytes
        if page.more:
            break
    return page


def tail_of_log(state: JournalState, name: str, created: int, after: int) -> TailPage:
    """Return what changed in a log after an id.

    Args:
        state: state of the journal.
        name: name of the log.
        created: see `find_log`.
        after: the reader has seen everything up to it.

    Raises:
        Unavailable: the creation of the log is not applied here yet.
        LogGone: as `find_log`.
    """
    check_least(state, created)
    log = find_log(state, name, created)
    through = max(after, state.last)
    if log is None:
        return TailPage(through)
    if log.last <= after:
        return TailPage(through, created=log.created)
    if after < state.recent.floor:
        return TailPage(through, rebased=True, created=log.created)
    page = TailPage(through, created=log.created)
    _fill(page, state, after, lambda change: _of_log(log, change))
    return page


def tail_of_keys(state: JournalState, prefix: str, after: int) -> TailPage:
    """Return what changed in the keys with a prefix after an id.

    Args:
        state: state of the journal.
        prefix: prefix of the keys.
        after: the reader has seen everything up to it.
    """
    through = max(after, state.last)
    if after < state.recent.floor:
        return TailPage(through, rebased=True)
    page = TailPage(through)
    _fill(page, state, after, lambda change: _of_keys(state, prefix, change))
    return page


def _fill(
    page: TailPage,
    state: JournalState,
    after: int,
    event_of: Callable[[RecentChange], Event | None],
) -> None:
    """Add the events after an id, as many as fit a page."""
    size, last = 0, after
    for change in state.recent.after(after):
        event = event_of(change)
        if event is None:
            continue
        if (
            change.id != last
            and page.events
            and (size >= PAGE_BYTES or len(page.events) >= PAGE_ITEMS)
        ):
            page.through, page.more = change.id - 1, True
            break
        page.events.append(event)
        last = change.id
        size += _size_of(event)


def _size_of(event: Event) -> int:
    """Return the bytes of an event in an answer, about."""
    match event:
        case InvalidatedEntries(ids=ids):
            return _EVENT_BYTES + _ID_BYTES * len(ids)
        case KeyValue():
            return event.size_bytes
        case DeletedKeyEvent(key=key):
            return _EVENT_BYTES + len(key)
        case (_, data):
            return _EVENT_BYTES + len(data)


def _of_log(log: NamedLog, change: RecentChange) -> Event | None:
    match change:
        case Appended(id=entry_id, log=created) if created == log.created:
            data = log.entries.get(entry_id)
            return None if data is None else (entry_id, data)
        case EntriesInvalidated(id=change_id, log=created, ids=ids) if (
            created == log.created and ids
        ):
            return InvalidatedEntries(change_id, ids)
        case _:
            return None


def _of_keys(state: JournalState, prefix: str, change: RecentChange) -> Event | None:
    if not isinstance(change, KeyChanged) or not change.key.startswith(prefix):
        return None
    now = state.keys.get(change.key)
    if change.deleted:
        return DeletedKeyEvent(change.id, change.key) if now is None else None
    return now if now is not None and now.version == change.id else None  # else by a later change
