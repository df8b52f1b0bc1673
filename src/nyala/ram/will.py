"""Wills: for each server, how its tablets are divided among others when it crashes. No I/O (S3.5)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nyala.ram.ids import HashRange, ServerId

DRIFT = 0.2
"""Share of a load by which it may change before a will is made anew."""


@dataclass(frozen=True, slots=True)
class TabletLoad:
    """Size of a tablet, as its server reports it."""

    bytes: int = 0
    rows: int = 0

    def exceeds(self, limit: "TabletLoad") -> bool:
        """Return True if one of both is above its limit."""
        return self.bytes > limit.bytes or self.rows > limit.rows

    def plus(self, other: "TabletLoad") -> "TabletLoad":
        """Return the sum."""
        return TabletLoad(self.bytes + other.bytes, self.rows + other.rows)


PART_LIMIT = TabletLoad(512 << 20, 4_000_000)
"""Most that one server recovers of another one."""
MOST_TABLETS = 8
"""Most tablets, or pieces of them, that one server recovers of another one, whatever they hold."""
Loads = Mapping[HashRange, TabletLoad]


@dataclass(slots=True)
class WillPart:
    """Tablets, or pieces of them, that one server recovers."""

    load: TabletLoad = field(default_factory=TabletLoad)
    pieces: list[HashRange] = field(default_factory=list)

    def has_room(self, load: TabletLoad, limit: TabletLoad) -> bool:
        """Return True if another piece with this load fits."""
        return len(self.pieces) < MOST_TABLETS and not self.load.plus(load).exceeds(limit)


def divide(
    tablets: Iterable[HashRange], loads: Loads, limit: TabletLoad = PART_LIMIT
) -> list[WillPart]:
    """Divide tablets into parts within all limits: the largest first, each into the first part with room.

    Args:
        tablets: of one server.
        loads: of those that are not empty.
        limit: of a part, which has `MOST_TABLETS` too; a tablet above it is cut into pieces of equal ranges.
    """
    found: list[tuple[TabletLoad, HashRange]] = []
    for tablet in tablets:
        load = loads.get(tablet, TabletLoad())
        count = max(1, -(-load.bytes // limit.bytes), -(-load.rows // limit.rows))
        found += _cut(tablet, load, min(count, tablet.last - tablet.first + 1))
    parts: list[WillPart] = []
    for load, piece in sorted(found, key=lambda one: (-one[0].bytes, -one[0].rows, one[1])):
        part = next((p for p in parts if p.has_room(load, limit)), None)
        if part is None:
            part = WillPart()
            parts.append(part)
        part.load = part.load.plus(load)
        part.pieces.append(piece)
    return parts


def _cut(tablet: HashRange, load: TabletLoad, count: int) -> list[tuple[TabletLoad, HashRange]]:
    size = (tablet.last - tablet.first + 1) // count
    share = TabletLoad(-(-load.bytes // count), -(-load.rows // count))
    firsts = [tablet.first + i * size for i in range(count)]
    lasts = [*(f - 1 for f in firsts[1:]), tablet.last]
    return [
        (share if count > 1 else load, HashRange(tablet.table_id, first, last))
        for first, last in zip(firsts, lasts, strict=True)
    ]


@dataclass(slots=True)
class _Will:
    tablets: tuple[HashRange, ...]
    loads: dict[HashRange, TabletLoad]
    parts: list[WillPart]


class Wills:
    """The wills of all servers. They are derived from tablets and loads, and so are in no record.

    Args:
        limit: of a part.
    """

    def __init__(self, limit: TabletLoad = PART_LIMIT) -> None:
        self._limit = limit
        self._wills: dict[ServerId, _Will] = {}
        self._loads: dict[ServerId, dict[HashRange, TabletLoad]] = {}

    def reported(self, server: ServerId, loads: Loads) -> None:
        """Take the loads that a server reports."""
        self._loads[server] = dict(loads)

    def refresh(self, server: ServerId, tablets: Sequence[HashRange]) -> bool:
        """Make the will of a server anew if its tablets have changed, or its loads have drifted.

        Args:
            server: id of the server.
            tablets: those that it owns.

        Returns:
            True if it was made anew.
        """
        known, loads = self._wills.get(server), self._loads.get(server, {})
        if (
            known is not None
            and known.tablets == tuple(tablets)
            and not drifted(known.loads, loads)
        ):
            return False
        parts = divide(tablets, loads, self._limit)
        self._wills[server] = _Will(tuple(tablets), dict(loads), parts)
        return True

    def parts(self, server: ServerId, tablets: Sequence[HashRange]) -> list[WillPart]:
        """Return the parts of a server's tablets, by its last will."""
        self.refresh(server, tablets)
        return self._wills[server].parts

    def forget(self, servers: Iterable[ServerId]) -> None:
        """Forget all servers but these."""
        kept = set(servers)
        for one in self._wills.keys() - kept:
            del self._wills[one]
        for one in self._loads.keys() - kept:
            del self._loads[one]


def drifted(known: Loads, loads: Loads) -> bool:
    """Return True if a tablet holds so much more, or less, than is known."""
    for tablet in known.keys() | loads.keys():
        before, now = known.get(tablet, TabletLoad()), loads.get(tablet, TabletLoad())
        for was, has in ((before.bytes, now.bytes), (before.rows, now.rows)):
            if abs(has - was) > DRIFT * was:
                return True
    return False
