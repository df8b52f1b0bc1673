"""State of the log in memory: index, segments, last hard states, anchors.

Updated with each record once it is durable. Used on the event loop only.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from nyala.common.ids import TabletId
from nyala.wal.anchors import Anchors
from nyala.wal.index import EntryLocation
from nyala.wal.recovery.recovered import Recovery
from nyala.wal.segments.format import (
    RECORD_HEADER_BYTES,
    IndexRow,
    LogPosition,
    RecordDraft,
    RecordKind,
    to_group,
)
from nyala.wal.segments.segment import PINNED, Segment, SegmentWriter


class LogState:
    """State of the log; grows with the appender's rounds, shrinks with collection.

    Args:
        recovery: content of the log at open.
        active: the segment that is appended to.

    Attributes:
        index: location of each entry.
        anchors: entries that each group still needs.
        closed: sealed segments, oldest first.
        active: the segment that is appended to.
    """

    def __init__(self, recovery: Recovery, active: SegmentWriter) -> None:
        self.index = recovery.index
        self.anchors = Anchors()
        self.closed = recovery.segments
        self.active = active
        self._hard_state_at = recovery.hard_state_at

    def record_durable(self, one: RecordDraft, at: LogPosition) -> None:
        """Add a record that is durable in the active segment."""
        if one.kind is RecordKind.MARKER:
            return
        segment = self.active.segment
        length = RECORD_HEADER_BYTES + len(one.payload)
        self.active.add_row(IndexRow(one.group, one.term, one.index, at.offset, length))
        group = to_group(one.group)
        segment.note(one.kind, group, one.index)
        place = EntryLocation(one.index, one.term, at.sequence, at.offset, length)
        if one.kind is RecordKind.ENTRY:
            whole = self.index.put(group, place)
            assert whole, f"{group}: entry {one.index} leaves a gap in the log"
        elif one.kind is RecordKind.MOVED:
            self.index.move(group, place)
        elif one.kind is RecordKind.HARD_STATE:
            self._hard_state_at[group] = at.sequence
        else:
            self._forget(group)

    @property
    def first(self) -> int:
        """Sequence of the oldest segment."""
        return (self.closed[0] if self.closed else self.active.segment).sequence

    def _forget(self, group: TabletId) -> None:
        """Void all records of a group so far."""
        self.index.drop_group(group)
        self._hard_state_at.pop(group, None)
        for segment in (*self.closed, self.active.segment):
            segment.forget(group)

    def rolled(self, following: SegmentWriter) -> None:
        """Replace the active segment, which is sealed, by the next one."""
        self.closed.append(self.active.segment)
        self.active = following

    def locate(
        self, group: TabletId, first_index: int, max_bytes: int
    ) -> list[tuple[Segment, list[EntryLocation]]]:
        """Return the locations of a group's entries, by segment.

        Args:
            group: id of the Raft group.
            first_index: index of the first entry.
            max_bytes: limit of their records; at least one is returned if there is one.

        Raises:
            LogGap: entries from there on have been collected.
        """
        return self.by_segment(self.index.locate(group, first_index, max_bytes))

    def by_segment(
        self, places: Sequence[EntryLocation]
    ) -> list[tuple[Segment, list[EntryLocation]]]:
        """Return locations grouped by segment, in order."""
        runs = groupby(places, key=lambda place: place.sequence)
        return [(self._find(sequence), list(run)) for sequence, run in runs]

    def _find(self, sequence: int) -> Segment:
        active = self.active.segment
        if sequence == active.sequence:
            return active
        return next(s for s in reversed(self.closed) if s.sequence == sequence)

    def only_hard_states(self, segment: Segment) -> list[TabletId]:
        """Return the groups whose last hard state is in this segment."""
        sequence = segment.sequence
        return [g for g in segment.hard_states if self._hard_state_at.get(g) == sequence]

    def pinning(self) -> Iterator[TabletId]:
        """Yield the groups that retain the oldest closed segment."""
        return self.anchors.pinning(self.closed[0]) if self.closed else iter(())

    def size_bytes(self) -> int:
        """Return the total size of the closed segments in bytes."""
        return sum(s.end for s in self.closed)

    def needs(self, group: TabletId, segment: Segment) -> bool:
        """Return whether a segment has an entry that a group needs."""
        first, last = self.anchors.first_needed(group), segment.last.get(group, 0)
        return bool(self.index.in_segment(group, segment.sequence, first, last))

    def needed(self, group: TabletId) -> list[EntryLocation]:
        """Return the locations of all entries that a group needs."""
        first = self.anchors.first_needed(group)
        bounds = self.index.bounds(group)
        if bounds is None or bounds[1] <= first:
            return []
        return self.index.locate(group, max(first, bounds[0]), 1 << 62)

    def needed_bytes(self, group: TabletId) -> int:
        """Return the size in bytes of the records that a group needs."""
        return self.index.size_bytes(group, self.anchors.first_needed(group), PINNED)

    def held_bytes(self) -> dict[TabletId, int]:
        """Return, by group, the bytes retained for other members or for failed replicas."""
        held = self.anchors.held()
        sizes = {g: self.index.size_bytes(g, first, end) for g, (first, end) in held.items()}
        return {g: size for g, size in sizes.items() if size}

    def release(self, segment: Segment, group: TabletId) -> None:
        """Record that a group needs nothing of a segment any more: its entries were rewritten."""
        last = segment.last.pop(group, 0)
        self.index.drop_segment(group, segment.sequence, last)

    def drop_oldest(self) -> None:
        """Remove the entries of the oldest closed segment from the index, before its file is removed."""
        oldest = self.closed[0]
        for group, last in oldest.last.items():
            self.index.drop_segment(group, oldest.sequence, last)

    def dropped(self) -> None:
        """Record that the oldest closed segment is removed."""
        self.closed.pop(0)
