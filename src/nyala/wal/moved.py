"""Runs of MOVED records at replay: the entries of a group that were written again at the log's end.

A run holds all entries of its group from some index on to the last one; it counts when it is whole. As long
as the originals are there each of its records only tells another place; when they have been collected the
run is where the group begins. A run whose beginning was collected, or that a crash cut short, was not needed
any more, or the originals are there. Pure.
"""

from dataclasses import dataclass, field

from nyala.common.ids import TabletId
from nyala.wal.format import Record
from nyala.wal.index import EntryLocation, LogIndex


@dataclass(slots=True)
class _Run:
    """One that is being read: `due` is the index of its next record."""

    due: int
    tail: bool
    places: list[EntryLocation] = field(default_factory=list)


class MovedRuns:
    """Puts moved entries in their place in an index.

    Args:
        index: of the log, as far as it is replayed.
    """

    def __init__(self, index: LogIndex) -> None:
        self._index = index
        self._open: dict[TabletId, _Run] = {}

    def take(self, group: TabletId, record: Record, place: EntryLocation) -> None:
        """Take a MOVED record.

        Args:
            group: of the record.
            record: in the order of the log.
            place: of the record.
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
        """Drop the run that is being read of a group."""
        self._open.pop(group, None)

    def _end(self, group: TabletId, run: _Run) -> None:
        self.forget(group)
        known = self._index.bounds(group)
        if known is None:
            # Else what followed was collected, and this run may be, too.
            ahead = run.places if run.tail else []
        else:
            ahead = [p for p in run.places if p.index < known[0]]
            if ahead and ahead[-1].index + 1 != known[0]:
                ahead = []
        if ahead:
            self._index.begin(group, ahead)
