"""Anchors: the first log index that each group still needs.

Rules: pure bookkeeping. Only the oldest segments are ever removed, so a hole in the sequence numbers
is damage and not collection. A group without an anchor pins everything it has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nyala.common.ids import TabletId
from nyala.wal.segment import PINNED, Segment


@dataclass(frozen=True, slots=True)
class Anchor:
    """Part of the log that one group needs.

    Attributes:
        first: index of the first entry that is needed at all.
        own: index of the first entry that this server's own replica needs; what lies before it stays for
            others.
        movable: no flush would let go of it: the log may write it again at its end instead.
    """

    first: int
    own: int
    movable: bool = False


NOTHING = Anchor(PINNED + 1, PINNED + 1)
"""Of a group that needs nothing, not even in segments that are kept for corrupt groups."""


class Anchors:
    """The first index that each group still needs (unflushed data, slow followers, copies)."""

    def __init__(self) -> None:
        self._of: dict[TabletId, Anchor] = {}

    def set(self, group: TabletId, anchor: Anchor) -> None:
        """Keep this group's entries from an index on; the rest may go."""
        self._of[group] = anchor

    def drop(self, group: TabletId) -> None:
        """The group has no anchor any more; what it still has in the log pins again."""
        self._of.pop(group, None)

    def first_needed(self, group: TabletId) -> int:
        """Return the first index that a group needs; 0: everything."""
        anchor = self._of.get(group)
        return 0 if anchor is None else anchor.first

    def movable(self, group: TabletId) -> bool:
        """Return whether what a group needs may be written again at the log's end."""
        anchor = self._of.get(group)
        return anchor is not None and anchor.movable

    def held(self) -> dict[TabletId, tuple[int, int]]:
        """Return from where to where groups need entries for others."""
        return {g: (a.first, a.own) for g, a in self._of.items() if a.first < a.own}

    def pinning(self, segment: Segment) -> Iterator[TabletId]:
        """Yield the groups with an entry in the segment that they may need."""
        for group, last in segment.last.items():
            if last >= self.first_needed(group):
                yield group
