"""Who still needs which part of the log: the first index that each group needs.

Rules: pure bookkeeping. Only the oldest segments are ever removed, so a hole in the sequence numbers
is damage and not collection. A group without an anchor pins everything it has.
"""

from collections.abc import Iterator

from nyala.common.ids import TabletId
from nyala.wal.segment import Segment


class Anchors:
    """The first index that each group still needs (unflushed data, slow followers, copies)."""

    def __init__(self) -> None:
        self._first_needed: dict[TabletId, int] = {}

    def set(self, group: TabletId, first_needed_index: int) -> None:
        """Keep this group's entries from an index on; the rest may go."""
        self._first_needed[group] = first_needed_index

    def drop(self, group: TabletId) -> None:
        """The group has no anchor any more; what it still has in the log pins again."""
        self._first_needed.pop(group, None)

    def pinning(self, segment: Segment) -> Iterator[TabletId]:
        """Yield the groups with an entry in the segment that they may need."""
        for group, last in segment.last.items():
            first_needed = self._first_needed.get(group)
            if first_needed is None or last >= first_needed:
                yield group
