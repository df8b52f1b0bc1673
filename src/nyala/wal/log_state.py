"""State of the log: index, segments, last hard states, anchors.

Rules: bookkeeping only, told of each record once it is durable. Loop only.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

from nyala.common.ids import TabletId
from nyala.wal.anchors import Anchors
from nyala.wal.format import (
    RECORD_HEADER_BYTES,
    IndexRow,
    LogPosition,
    RecordDraft,
    RecordKind,
    to_group,
)
from nyala.wal.index import EntryLocation
from nyala.wal.recovered import Recovery
from nyala.wal.segment import PINNED, Segment, SegmentWriter


class LogState:
    """Grows with the appender's rounds, shrinks with collection.

    Args:
        recovery: what the log held at open.
        active: the segment that is appended to.

    Attributes:
        index: where each entry stands.
        anchors: what each group still needs.
        closed: sealed segments, oldest first.
        active: the one that is appended to.
    """

    def __init__(self, recovery: Recovery, active: SegmentWriter) -> None:
        self.index = recovery.index
        self.anchors = Anchors()
        self.closed = recovery.segments
        self.active = active
        self._hard_state_at = recovery.hard_state_at

    def record_durable(self, one: RecordDraft, at: LogPosition) -> None:
        """A record is durable in the active segment."""
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
        """The oldest segment there is."""
        return (self.closed[0] if self.closed else self.active.segment).sequence

    def _forget(self, group: TabletId) -> None:
        """All records of the group so far are void."""
        self.index.drop_group(group)
        self._hard_state_at.pop(group, None)
        for segment in (*self.closed, self.active.segment):
            segment.forget(group)

    def rolled(self, following: SegmentWriter) -> None:
        """The active segment is sealed; this one follows it."""
        self.closed.append(self.active.segment)
        self.active = following

    def locate(
        self, group: TabletId, first_index: int, max_bytes: int
    ) -> list[tuple[Segment, list[EntryLocation]]]:
        """Return the locations of a group's entries, by segment.

        Args:
            group: whose entries.
            first_index: of the first.
            max_bytes: of their records; one at least is returned if there is one.

        Raises:
            LogGap: entries from there on have been collected.
        """
        return self.by_segment(self.index.locate(group, first_index, max_bytes))

    def by_segment(
        self, places: Sequence[EntryLocation]
    ) -> list[tuple[Segment, list[EntryLocation]]]:
        """Return places by segment, in their order."""
        runs = groupby(places, key=lambda place: place.sequence)
        return [(self._find(sequence), list(run)) for sequence, run in runs]

    def _find(self, sequence: int) -> Segment:
        active = self.active.segment
        if sequence == active.sequence:
            return active
        return next(s for s in reversed(self.closed) if s.sequence == sequence)

    def only_hard_states(self, segment: Segment) -> list[TabletId]:
        """Return the groups whose last hard state stands in this segment and nowhere later."""
        here = segment.sequence
        return [g for g in segment.hard_states if self._hard_state_at.get(g) == here]

    def pinning(self) -> Iterator[TabletId]:
        """Yield the groups that keep the oldest closed segment."""
        return self.anchors.pinning(self.closed[0]) if self.closed else iter(())

    def size_bytes(self) -> int:
        """Return how long the closed segments are together."""
        return sum(s.end for s in self.closed)

    def needs(self, group: TabletId, segment: Segment) -> bool:
        """Return whether an entry that a group needs stands in a segment."""
        first, last = self.anchors.first_needed(group), segment.last.get(group, 0)
        return bool(self.index.in_segment(group, segment.sequence, first, last))

    def needed(self, group: TabletId) -> list[EntryLocation]:
        """Return where all the entries stand that a group needs."""
        first = self.anchors.first_needed(group)
        bounds = self.index.bounds(group)
        if bounds is None or bounds[1] <= first:
            return []
        return self.index.locate(group, max(first, bounds[0]), 1 << 62)

    def needed_bytes(self, group: TabletId) -> int:
        """Return how long the records are that a group needs."""
        return self.index.size_bytes(group, self.anchors.first_needed(group), PINNED)

    def held_bytes(self) -> dict[TabletId, int]:
        """Return how long the records are that stay for other members, or for replicas that failed."""
        held = self.anchors.held()
        sizes = {g: self.index.size_bytes(g, first, end) for g, (first, end) in held.items()}
        return {g: size for g, size in sizes.items() if size}

    def release(self, segment: Segment, group: TabletId) -> None:
        """A group needs nothing of a segment any more: what it needed stands elsewhere."""
        last = segment.last.pop(group, 0)
        self.index.drop_segment(group, segment.sequence, last)

    def drop_oldest(self) -> None:
        """The oldest closed segment is to be removed: nothing of it is found any more."""
        oldest = self.closed[0]
        for group, last in oldest.last.items():
            self.index.drop_segment(group, oldest.sequence, last)

    def dropped(self) -> None:
        """The oldest closed segment is removed."""
        self.closed.pop(0)
