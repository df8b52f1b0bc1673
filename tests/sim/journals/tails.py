"""Checker of tails of logs: each valid entry once, in order, and each invalidation, after any pause."""

from dataclasses import dataclass, field

from nyala.client.journal.items import Entry, Event, Invalidated, Key, KeyEvent, Rebased, Synced
from tests.sim.journals.history import JournalViolation, ListKeys, LogHistory, Timeline


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that a reader received at one time.

    Attributes:
        at: time.
        events: empty: it began or continued after the id `after`, or the log was deleted.
        after: id of which and before which the reader has seen everything.
        gone: LogGone was raised.
    """

    at: float
    events: tuple[Event | KeyEvent, ...] = ()
    after: int = 0
    gone: bool = False


@dataclass(slots=True)
class Following:
    """All that one reader received of one log, or of the keys with a prefix.

    Attributes:
        name: name of the reader.
        of: name of the log; or prefix of the keys.
        created: id of the log's creation; 0: it is not known.
        held: content by the events so far: data by id, or (version, value) by name.
        last: id after which it continues.
        synced: a watch has reported all keys.
    """

    name: str
    of: str
    created: int = 0
    batches: list[Batch] = field(default_factory=list)
    held: dict[int, bytes] = field(default_factory=dict)
    keys: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    last: int = 0
    synced: bool = False

    def take(self, at: float, events: list[Event] | list[KeyEvent]) -> None:
        """Apply the events of one answer, as documented."""
        self.batches.append(Batch(at, tuple(events)))
        for event in events:
            match event:
                case Rebased():
                    self.held.clear()
                    self.keys.clear()
                    self.last, self.synced = 0, False
                    continue
                case Synced(through=change):
                    self.synced = True
                case Entry(id=change, data=data):
                    self.held[change] = data
                case Invalidated(ids=ids, id=change):
                    for one in ids:
                        self.held.pop(one, None)
                case Key(name=name, value=None, version=change):
                    self.keys.pop(name, None)
                case Key(name=name, value=value, version=change):
                    assert value is not None
                    self.keys[name] = (change, value)
            self.last = max(self.last, change)


class _LogTail:
    """State of the check of one tail."""

    def __init__(self, following: Following, timeline: Timeline, history: LogHistory) -> None:
        self._following = following
        self._timeline = timeline
        self._history = history
        self._held: dict[int, bytes] = {}
        self._order = (0, 0)  # id and kind of the last event
        self._told: int | None = None  # all invalidations up to it were returned, or need not be
        self._ids = sorted(history.appended)
        self._changes = sorted(history.invalidations)

    def take(self, batch: Batch) -> None:
        if batch.gone:
            deleted = self._history.deleted
            last = self._timeline.last_at(batch.at)
            if not deleted or self._timeline.position_of(deleted) > last:
                self._fail(batch, "LogGone, and the log was not deleted")
            return
        if not batch.events:
            self._order = (batch.after, 1)
            self._told = batch.after or None
            if not batch.after:
                self._held.clear()
            return
        for event in batch.events:
            self._event(batch, event)
        self._complete(batch)

    def _event(self, batch: Batch, event: Event | KeyEvent) -> None:
        history = self._history
        match event:
            case Rebased(through=through):
                self._held.clear()
                self._order, self._told = (0, 0), through
                return
            case Entry(id=change, data=data):
                order = (change, 0)
                if history.appended.get(change) != data:
                    self._fail(batch, f"{event} was not appended")
                self._held[change] = data
            case Invalidated(ids=ids, id=change):
                order = (change, 1)
                if sorted(ids) != sorted(history.invalidations.get(change, ())):
                    wanted = history.invalidations.get(change)
                    self._fail(batch, f"{event}: that change invalidated {wanted}")
                for one in ids:
                    self._held.pop(one, None)
            case _:
                raise AssertionError(event)
        if order <= self._order:
            self._fail(batch, f"{event} came after {self._order}")
        self._order = order
        if self._told is not None:
            missed = [c for c in self._changes if self._told < c < change]
            if missed:
                self._fail(batch, f"{event} came, and invalidations {missed[:5]} did not")
            self._told = max(self._told, change - 1 + order[1])

    def _complete(self, batch: Batch) -> None:
        """Check what the reader holds after a batch."""
        reached, timeline, invalidated = self._order[0], self._timeline, self._history.invalidated
        last = timeline.last_at(batch.at)
        for one in self._held:
            if invalidated.get(one, reached + 1) <= reached:
                self._fail(batch, f"it holds {one}, which {invalidated[one]} invalidated")
        for one in self._ids:
            if one > reached:
                break
            by = invalidated.get(one, 0)
            if one not in self._held and not (by and timeline.position_of(by) <= last):
                self._fail(batch, f"it lacks the entry {one}, and has reached {reached}")

    def _fail(self, batch: Batch, why: str) -> None:
        following = self._following
        raise JournalViolation(
            f"{following.name}, tail of {following.of!r} created {following.created}: {why}; "
            f"at {batch.at:.6f}: {batch}"[:3000]
        )


def check_tail(following: Following, timeline: Timeline) -> None:
    """Check all events of a tail.

    Raises:
        JournalViolation: something is missing, twice, out of order, or wrong.
    """
    if not following.created:
        events = [b for b in following.batches if b.events]
        assert not events, f"events of a log that was not found: {events[:3]}"
        return
    checking = _LogTail(following, timeline, timeline.histories[following.created])
    for batch in following.batches:
        checking.take(batch)


def check_watch(following: Following, timeline: Timeline) -> None:
    """Check all events of a watch: changes that were made, each once, and in order until it is rebased.

    When it says that all keys have been reported, they are those of a state that includes all that was
    acknowledged before the watch began.

    Raises:
        JournalViolation: something is missing, twice, out of order, or wrong.
    """
    returned: set[int] = set()
    held: dict[str, tuple[int, bytes]] = {}
    began = 0.0
    after: int | None = None  # everything after it must come in order; None: it may be rebased
    for batch in following.batches:
        if not batch.events:
            returned.clear()
            began, after = batch.at, batch.after or None
            if not batch.after:
                held.clear()
        for event in batch.events:
            where = f"{following.name}, watch of {following.of!r} at {batch.at:.6f}: {event}"
            match event:
                case Rebased():
                    returned.clear()
                    held.clear()
                    after = None
                    continue
                case Synced(through=through):
                    _check_synced(timeline, following.of, through, began, held, where)
                    continue
            assert isinstance(event, Key), event
            made = timeline.key_changes.get(event.version)
            if made != (event.name, event.value):
                raise JournalViolation(f"{where}: that change was {made}")
            if event.version in returned:
                raise JournalViolation(f"{where} came twice")
            returned.add(event.version)
            if event.value is None:
                held.pop(event.name, None)
            else:
                held[event.name] = event.version, event.value
            if after is not None:
                _check_order(timeline, following.of, batch, after, event.version, where)
                after = event.version


def _check_synced(
    timeline: Timeline,
    prefix: str,
    through: int,
    began: float,
    held: dict[str, tuple[int, bytes]],
    where: str,
) -> None:
    """Check that a watch holds the state that it is said to hold."""
    position = timeline.position_of(through)
    if position < timeline.seen_at(began):
        raise JournalViolation(f"{where} lacks changes acknowledged before {began:.6f}")
    wanted = timeline.answer(ListKeys(prefix), position)
    found = tuple((name, *held[name]) for name in sorted(held))
    if found != wanted:
        raise JournalViolation(f"{where} came with {found}, and the keys were {wanted}")


def _check_order(
    timeline: Timeline, prefix: str, batch: Batch, after: int, now: int, where: str
) -> None:
    """Check that a watch has left out only changes that a later one of the same key has replaced."""
    if now <= after:
        raise JournalViolation(f"{where} came after {after}")
    last = timeline.last_at(batch.at)
    for change, (key, _) in timeline.key_changes.items():
        if after < change < now and key.startswith(prefix):
            later = [c for c, (k, _) in timeline.key_changes.items() if k == key and c > change]
            if not any(timeline.position_of(c) <= last for c in later):
                raise JournalViolation(f"{where}: change {change} of {key!r} did not come")
