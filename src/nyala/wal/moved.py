"""Replay of MOVED records: entries of a group that were rewritten at the end of the log.

A run has all entries of its group from some index on to the last one; it counts only if it is complete. While
the original records exist, each MOVED record only changes a location; once they are collected, the group
begins with the run. A run whose beginning was collected, or that a crash truncated, is not needed any more,
or the originals exist.
"""

from dataclasses import dataclass, field

from nyala.common.ids import TabletId
from nyala.wal.format import Record
from nyala.wal.index import EntryLocation, LogIndex


@dataclass(slots=True)
class _Run:
    """A run that is being read; `due` is the index of its next record."""

    due: int
    tail: bool
    places: list[EntryLocation] = field(default_factory=list)


class MovedRuns:
    """Adds rewritten entries to an index.

    Args:
        index: index of the log replayed so far.
    """

    def __init__(self, index: LogIndex) -> None:
        self._index = index
        self._open: dict[TabletId, _Run] = {}

    def take(self, group: TabletId, record: Record, place: EntryLocation) -> None:
        """Process a MOVED record.

        Args:
            group: id of the record's group.
            record: in the order of the log.
            place: location of the record.
        """
        if record.begins:
            self._open[group] = _Run(place.index, record.tail)
        run = self._open.get(group)
        if run is not None and place.index != run.due:
            self.forget(group)
            run = None
        known = self._index.bounds(group)
        moved = self._index.move(group, place)
        if run is None:
            return
        run.due += 1
        if not moved and (known is None or place.index < known[0]):
            run.places.append(place)
        if record.rest == 0:
            self._end(group, run)

    def forget(self, group: TabletId) -> None:
        """Discard the unfinished run of a group."""
        self._open.pop(group, None)

    def _end(self, group: TabletId, run: _Run) -> None:
        self.forget(group)
        known = self._index.bounds(group)
        if known is None:
            # Otherwise later entries were collected, and this run may be incomplete.
            ahead = run.places if run.tail else []
        else:
            ahead = [p for p in run.places if p.index < known[0]]
            if ahead and ahead[-1].index + 1 != known[0]:
                ahead = []
        if ahead:
            self._index.begin(group, ahead)
