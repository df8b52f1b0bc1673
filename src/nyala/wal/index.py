"""Index of the log: group → index → (segment, offset, length), in memory, rebuilt at open.

A later entry for an index replaces the earlier one and truncates the group's later entries; an entry
rewritten at the end of the log is the same entry at another location and truncates nothing. Four arrays per
group, 24 bytes per entry.
"""

from array import array
from collections.abc import Iterator
from typing import NamedTuple

from nyala.common.errors import LogGap
from nyala.common.ids import OpId, TabletId


class EntryLocation(NamedTuple):
    """Location of an entry's record."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    sequence: int
    offset: int
    length: int


class GroupIndex:
    """Locations of one group's entries: contiguous indexes from `first` on."""

    __slots__ = ("_before", "_ends", "_offsets", "_sequences", "_terms", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self._before = 0  # total bytes of the entries before the first one
        self._terms = array("Q")
        self._sequences = array("I")
        self._offsets = array("I")
        self._ends = array("Q")  # total bytes up to and including each entry

    @property
    def next(self) -> int:
        """The index after the last."""
        return self.first + len(self._terms)

    def put(self, place: EntryLocation) -> bool:
        """Add an entry's location; return False, and change nothing, if it would leave a gap."""
        at = place.index - self.first
        if at > len(self._terms):
            return False
        if at < len(self._terms):
            if at < 0:  # all known entries are replaced
                self.first, at = place.index, 0
            for column in self._columns():
                del column[at:]
        self._terms.append(place.term)
        self._sequences.append(place.sequence)
        self._offsets.append(place.offset)
        self._ends.append(self._end(at) + place.length)
        return True

    def move(self, place: EntryLocation) -> bool:
        """Set the new location of a rewritten entry; return False if there is no such entry."""
        at = place.index - self.first
        if not (0 <= at < len(self._terms) and self._terms[at] == place.term):
            return False
        self._sequences[at], self._offsets[at] = place.sequence, place.offset
        return True

    def term(self, index: int) -> int:
        """Return the term of an existing entry."""
        return self._terms[index - self.first]

    def get(self, index: int) -> EntryLocation:
        """Return the location of an existing entry."""
        at = index - self.first
        length = self._ends[at] - self._end(at)
        return EntryLocation(index, self._terms[at], self._sequences[at], self._offsets[at], length)

    def size_bytes(self, first: int, end: int) -> int:
        """Return the total size in bytes of the records of the entries in [first, end)."""
        first, end = (min(max(0, i - self.first), len(self._ends)) for i in (first, end))
        return max(0, self._end(end) - self._end(first))

    def in_segment(self, sequence: int, first: int, last: int) -> Iterator[int]:
        """Yield the indexes of entries that are in a segment.

        Args:
            sequence: sequence number of the segment.
            first: lowest index.
            last: highest index.
        """
        for index in range(max(first, self.first), min(last + 1, self.next)):
            if self._sequences[index - self.first] == sequence:
                yield index

    def drop_segment(self, sequence: int, last: int) -> None:
        """Remove the entries up to the last one, at or below `last`, that is in a segment."""
        count = min(last + 1, self.next) - self.first
        while count > 0 and self._sequences[count - 1] != sequence:
            count -= 1
        if count > 0:
            self._before = self._ends[count - 1]
            self.first += count
            for column in self._columns():
                del column[:count]

    def _end(self, at: int) -> int:
        return self._ends[at - 1] if at else self._before

    def _columns(self) -> tuple["array[int]", "array[int]", "array[int]", "array[int]"]:
        return self._terms, self._sequences, self._offsets, self._ends


class LogIndex:
    """The index of the whole log."""

    def __init__(self) -> None:
        self._groups: dict[TabletId, GroupIndex] = {}

    def put(self, group: TabletId, place: EntryLocation) -> bool:
        """Add an entry; return False, and change nothing, if it would leave a gap in its group."""
        own = self._groups.get(group)
        if own is None:
            own = self._groups[group] = GroupIndex(place.index)
        return own.put(place)

    def begin(self, group: TabletId, places: list[EntryLocation]) -> None:
        """Prepend entries to a group; known entries that they do not replace follow them."""
        known, own = self._groups.get(group), GroupIndex(places[0].index)
        end = places[-1].index + 1
        later = [] if known is None else [known.get(i) for i in range(known.first, known.next)]
        assert not later or later[0].index == end, (
            f"{group}: the next index is {end}, not {later[0].index}"
        )
        for place in (*places, *later):
            own.put(place)
        self._groups[group] = own

    def move(self, group: TabletId, place: EntryLocation) -> bool:
        """Set the new location of a rewritten entry; see `GroupIndex.move`."""
        own = self._groups.get(group)
        return own is not None and own.move(place)

    def bounds(self, group: TabletId) -> tuple[int, int] | None:
        """Return (first index, index after the last); None: an unknown group."""
        own = self._groups.get(group)
        return None if own is None else (own.first, own.next)

    def size_bytes(self, group: TabletId, first: int, end: int) -> int:
        """Return the bytes of a group's records; 0 for an unknown group.

        Args:
            group: id of the Raft group.
            first: lowest index.
            end: after the highest index.
        """
        own = self._groups.get(group)
        return 0 if own is None else own.size_bytes(first, end)

    def in_segment(
        self, group: TabletId, sequence: int, first: int, last: int
    ) -> list[EntryLocation]:
        """Return the locations of a group's entries that are in a segment.

        Args:
            group: id of the Raft group.
            sequence: sequence number of the segment.
            first: lowest index.
            last: highest index.
        """
        own = self._groups.get(group)
        if own is None:
            return []
        return [own.get(index) for index in own.in_segment(sequence, first, last)]

    def holds(self, group: TabletId, op: OpId) -> bool:
        """Return whether the entry at an index exists and has this term."""
        own = self._groups.get(group)
        return (
            own is not None and own.first <= op.index < own.next and own.term(op.index) == op.term
        )

    def starts(self, group: TabletId) -> list[OpId]:
        """Return the op ids of a group's first entry, the first one of each later term, and the last."""
        own = self._groups.get(group)
        if own is None or own.first == own.next:
            return []
        found = [OpId(own.term(own.first), own.first)]
        for index in range(own.first + 1, own.next):
            if own.term(index) != found[-1].term:
                found.append(OpId(own.term(index), index))
        return [*found, OpId(found[-1].term, own.next - 1)]

    def locate(self, group: TabletId, first_index: int, max_bytes: int) -> list[EntryLocation]:
        """Return the locations of a group's entries from an index on.

        Args:
            group: id of the Raft group.
            first_index: index of the first entry.
            max_bytes: limit of their records; at least one is returned if there is one.

        Raises:
            LogGap: entries from there on have been collected.
        """
        own = self._groups.get(group)
        if own is None or first_index >= own.next:
            return []
        if first_index < own.first:
            raise LogGap(
                f"the log of {group} begins at {own.first}, after the requested index {first_index}; "
                "a replica that needs this entry needs a tablet copy",
                {"first": str(own.first)},
            )
        places: list[EntryLocation] = []
        for index in range(first_index, own.next):
            place = own.get(index)
            max_bytes -= place.length
            if places and max_bytes < 0:
                break
            places.append(place)
        return places

    def drop_group(self, group: TabletId) -> None:
        """Remove a group."""
        self._groups.pop(group, None)

    def drop_segment(self, group: TabletId, sequence: int, last: int) -> None:
        """Remove a group's entries up to the last one in a segment; see `GroupIndex.drop_segment`.

        Args:
            group: id of the Raft group.
            sequence: sequence number of the segment.
            last: highest index considered.
        """
        if (own := self._groups.get(group)) is not None:
            own.drop_segment(sequence, last)
