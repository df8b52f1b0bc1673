"""Where each entry stands: group → index → (segment, offset, length). In memory, rebuilt at open.

Rules: pure. A later entry for an index wins and cuts the group's suffix (truncation is logical);
four arrays a group, 20 bytes an entry.
"""

from array import array
from typing import NamedTuple

from nyala.common.errors import LogGap
from nyala.common.ids import TabletId


class Place(NamedTuple):
    """Where an entry's record stands."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    term: int
    sequence: int
    offset: int
    length: int


class GroupIndex:
    """The places of one group's entries: contiguous indices from `first` on."""

    __slots__ = ("_lengths", "_offsets", "_sequences", "_terms", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self._terms = array("Q")
        self._sequences = array("I")
        self._offsets = array("I")
        self._lengths = array("I")

    @property
    def next(self) -> int:
        """The index after the last."""
        return self.first + len(self._terms)

    def put(self, place: Place) -> bool:
        """Add an entry's place; return False, and change nothing, if it would leave a gap."""
        at = place.index - self.first
        if at > len(self._terms):
            return False
        if at < len(self._terms):
            if at < 0:  # everything known is replaced
                self.first, at = place.index, 0
            for column in self._columns():
                del column[at:]
        self._terms.append(place.term)
        self._sequences.append(place.sequence)
        self._offsets.append(place.offset)
        self._lengths.append(place.length)
        return True

    def get(self, index: int) -> Place:
        """Return the place of an entry that is there."""
        at = index - self.first
        terms, sequences, offsets, lengths = self._columns()
        return Place(index, terms[at], sequences[at], offsets[at], lengths[at])

    def drop_before(self, sequence: int) -> None:
        """Forget the leading entries that stand in segments before `sequence`."""
        count = 0
        for own in self._sequences:
            if own >= sequence:
                break
            count += 1
        self.first += count
        for column in self._columns():
            del column[:count]

    def _columns(self) -> tuple["array[int]", "array[int]", "array[int]", "array[int]"]:
        return self._terms, self._sequences, self._offsets, self._lengths


class LogIndex:
    """The index of the whole log."""

    def __init__(self) -> None:
        self._groups: dict[TabletId, GroupIndex] = {}

    def put(self, group: TabletId, place: Place) -> bool:
        """Add an entry; return False, and change nothing, if it would leave a gap in its group."""
        own = self._groups.get(group)
        if own is None:
            own = self._groups[group] = GroupIndex(place.index)
        return own.put(place)

    def bounds(self, group: TabletId) -> tuple[int, int] | None:
        """Return (first index, index after the last), or None for an unknown group."""
        own = self._groups.get(group)
        return None if own is None else (own.first, own.next)

    def locate(self, group: TabletId, first_index: int, max_bytes: int) -> list[Place]:
        """Return the places from an index on: at least one if there is one, then up to the limit.

        Raises:
            LogGap: entries from there on have been collected.
        """
        own = self._groups.get(group)
        if own is None or first_index >= own.next:
            return []
        if first_index < own.first:
            raise LogGap(
                f"the log of {group} begins at {own.first}, {first_index} was asked for; "
                "a replica that needs it has to be copied",
                {"first": str(own.first)},
            )
        places: list[Place] = []
        for index in range(first_index, own.next):
            place = own.get(index)
            max_bytes -= place.length
            if places and max_bytes < 0:
                break
            places.append(place)
        return places

    def drop_group(self, group: TabletId) -> None:
        """Forget a group."""
        self._groups.pop(group, None)

    def drop_before(self, sequence: int) -> None:
        """Forget what stands in segments before `sequence`, which are gone."""
        for own in self._groups.values():
            own.drop_before(sequence)
