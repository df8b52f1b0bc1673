"""Replay of MOVED records: entries of a group that were rewritten at the end of the log.

A run has all entries of its group from some index on to the last one; it counts only if it is complete. While
the original records exist, it only changes their locations; once they are collected, the group begins with
the run. Of a run that a crash truncated the originals exist. Of a run whose beginning was collected, the rest
may be needed still.
"""

from dataclasses import dataclass, field

from nyala.common.ids import TabletId
from nyala.wal.index import EntryLocation, LogIndex
from nyala.wal.segments.format import Record


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
        # None: records of the group are ignored until a run begins.
        self._open: dict[TabletId, _Run | None] = {}

    def take(self, group: TabletId, record: Record, place: EntryLocation) -> None:
        """Process a MOVED record.

        Args:
            group: id of the record's group.
            record: in the order of the log.
            place: location of the record.
        """
        if record.begins or group not in self._open:
            self._open[group] = _Run(place.index, record.tail)
        run = self._open[group]
        if run is None:
            return
        if place.index != run.due:
            self.forget(group)
            return
        run.due += 1
        run.places.append(place)
        if record.rest == 0:
            self._end(group, run)

    def forget(self, group: TabletId) -> None:
        """Discard the unfinished run of a group, and what follows of it."""
        self._open[group] = None

    def _end(self, group: TabletId, run: _Run) -> None:
        self.forget(group)
        known = self._index.bounds(group)
        gone = [place for place in run.places if not self._index.move(group, place)]
        if known is None:
            ahead = gone if run.tail else []  # otherwise later entries were collected
        else:
            ahead = [p for p in gone if p.index < known[0]]
            if ahead and ahead[-1].index + 1 != known[0]:
                ahead = []
        if ahead:
            self._index.begin(group, ahead)
