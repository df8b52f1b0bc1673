"""Anchors: the first log index that each group still needs.

Only the oldest segments are ever removed, so a gap in the sequence numbers is damage. A group without an
anchor retains all its records.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from nyala.common.ids import TabletId
from nyala.wal.segments.segment import PINNED, Segment


@dataclass(frozen=True, slots=True)
class Anchor:
    """Entries that one group needs.

    Attributes:
        first: index of the first entry that is needed at all.
        own: index of the first entry that the local replica needs; those before it are retained for other
            members.
        movable: no flush releases the entries: the log may rewrite them at its end instead.
    """

    first: int
    own: int
    movable: bool = False


NOTHING = Anchor(PINNED + 1, PINNED + 1)
"""Anchor of a group that needs nothing, not even in segments that are retained for corrupt groups."""


class Anchors:
    """Anchors of all groups (unflushed data, slow followers, copies)."""

    def __init__(self) -> None:
        self._of: dict[TabletId, Anchor] = {}

    def set(self, group: TabletId, anchor: Anchor) -> None:
        """Retain this group's entries from an index on; earlier ones may be removed."""
        self._of[group] = anchor

    def drop(self, group: TabletId) -> None:
        """Remove a group's anchor; all its records in the log are retained."""
        self._of.pop(group, None)

    def first_needed(self, group: TabletId) -> int:
        """Return the first index that a group needs; 0: all entries."""
        anchor = self._of.get(group)
        return 0 if anchor is None else anchor.first

    def movable(self, group: TabletId) -> bool:
        """Return whether the entries that a group needs may be rewritten at the end of the log."""
        anchor = self._of.get(group)
        return anchor is not None and anchor.movable

    def listed(self) -> dict[TabletId, Anchor]:
        """Return all anchors, by group."""
        return dict(self._of)

    def held(self) -> dict[TabletId, tuple[int, int]]:
        """Return, by group, the index range that is retained for other members: (first, own)."""
        return {g: (a.first, a.own) for g, a in self._of.items() if a.first < a.own}

    def pinning(self, segment: Segment) -> Iterator[TabletId]:
        """Yield the groups that may need an entry of the segment."""
        for group, last in segment.last.items():
            if last >= self.first_needed(group):
                yield group
