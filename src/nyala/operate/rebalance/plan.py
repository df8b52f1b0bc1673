"""Choice of the moves that spread replicas and leaders evenly. Pure.

First replicas leave locations that have too many of a tablet; then those of each table are spread over the
servers; then all replicas are, by moves that leave the tables as even as they were (Kudu's rebalancer:
the table with the greatest skew first, then the cluster). Skew is the difference between the servers with the
most and the fewest replicas; 0 and 1 count as even. No move puts more replicas of a tablet into a location
than its share, unless as many were in the location that it leaves.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

EVEN = 1
"""Greatest skew that is even."""


@dataclass(frozen=True, slots=True)
class PlacedTablet:
    """A tablet and where it is.

    Attributes:
        id: its id.
        table: id of its table or journal.
        servers: uuids of the servers with a replica.
        leader: uuid of the server whose replica leads; empty: none.
        movable: it is healthy, and may be moved; others count only.
    """

    id: str
    table: str
    servers: tuple[str, ...]
    leader: str = ""
    movable: bool = True


@dataclass(frozen=True, slots=True)
class Move:
    """One step: a replica moves from one server to another, or the leadership does."""

    tablet: str
    source: str
    target: str
    reason: str


@dataclass(slots=True)
class Placement:
    """Replicas on servers, changed by each move that is planned.

    Attributes:
        locations: location of each server that takes replicas; empty: not known, so it counts as its own.
        tablets: all tablets, by id.
        resting: location of each server that takes none at present, and whose replicas stay on it.
        totals: number of replicas by server.
        of_table: the same by table.
        on: ids of the tablets on each server.
    """

    locations: Mapping[str, str]
    tablets: dict[str, PlacedTablet]
    resting: Mapping[str, str] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)
    of_table: dict[str, Counter[str]] = field(default_factory=dict)
    on: dict[str, set[str]] = field(default_factory=dict)
    _shares: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for tablet in self.tablets.values():
            self.totals.update(tablet.servers)
            self.of_table.setdefault(tablet.table, Counter()).update(tablet.servers)
            for server in tablet.servers:
                self.on.setdefault(server, set()).add(tablet.id)

    def rest(self, server: str) -> None:
        """Plan no moves to or from a server; its replicas count for its location."""
        self.resting = {**self.resting, server: self.locations.get(server, "")}
        self.locations = {s: place for s, place in self.locations.items() if s != server}

    def location(self, server: str) -> str:
        """Return the location of a server; a server without one is a location by itself."""
        known = self.locations.get(server) or self.resting.get(server)
        return known or f"server {server}"

    def in_location(self, tablet: PlacedTablet, location: str) -> int:
        """Return the number of replicas of a tablet in a location."""
        return sum(self.location(s) == location for s in tablet.servers)

    def share(self, tablet: PlacedTablet) -> int:
        """Return how many replicas of a tablet a location has at most when they are spread over all."""
        replicas = len(tablet.servers)
        if replicas not in self._shares:
            self._shares[replicas] = self._share(replicas)
        return self._shares[replicas]

    def _share(self, replicas: int) -> int:
        room = Counter(self.location(s) for s in (*self.locations, *self.resting))
        for share in range(1, replicas + 1):
            if sum(min(share, servers) for servers in room.values()) >= replicas:
                return share
        return replicas + 1

    def may_move(self, tablet: PlacedTablet, source: str, target: str) -> bool:
        """Return whether a replica may move, by the state of its tablet and by locations.

        Args:
            tablet: as it is placed now.
            source: server of the replica.
            target: server that is to get it.
        """
        if not tablet.movable or source not in tablet.servers or target in tablet.servers:
            return False
        left, entered = self.location(source), self.location(target)
        if left == entered:
            return True
        after = self.in_location(tablet, entered) + 1
        return after <= max(self.share(tablet), self.in_location(tablet, left))

    def move(self, tablet: PlacedTablet, source: str, target: str) -> None:
        """Change the placement by one move.

        Args:
            tablet: as it is placed now.
            source: server of the replica.
            target: server that gets it.
        """
        servers = tuple(target if s == source else s for s in tablet.servers)
        self.tablets[tablet.id] = replace(tablet, servers=servers)
        for counts in (self.totals, self.of_table[tablet.table]):
            counts[source] -= 1
            counts[target] += 1
        self.on[source].discard(tablet.id)
        self.on.setdefault(target, set()).add(tablet.id)

    def skew(self, counts: Mapping[str, int]) -> int:
        """Return the difference between the servers with the most and the fewest."""
        numbers = [counts.get(s, 0) for s in self.locations]
        return max(numbers) - min(numbers) if numbers else 0

    def pairs(self, counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
        """Return servers between which a move makes counts more even, the most uneven ones first."""
        order = sorted(self.locations, key=lambda s: (counts.get(s, 0), self.totals[s], s))
        found = [
            (low, high)
            for low in order
            for high in order
            if counts.get(high, 0) - counts.get(low, 0) > EVEN
        ]
        found.sort(key=lambda pair: counts.get(pair[0], 0) - counts.get(pair[1], 0))
        for low, high in found:
            yield high, low


def plan(placement: Placement) -> Iterator[Move]:
    """Return the moves of replicas, each planned on the result of those before it.

    Args:
        placement: is changed.
    """
    yield from _out_of_locations(placement)
    yield from _of_tables(placement)
    while move := _of_all(placement):
        yield move
        yield from _of_tables(placement)


def _out_of_locations(placement: Placement) -> Iterator[Move]:
    for tablet in list(placement.tablets.values()):
        share = placement.share(tablet)
        for source in tablet.servers:
            now = placement.tablets[tablet.id]
            location = placement.location(source)
            if not tablet.movable or placement.in_location(now, location) <= share:
                continue
            free = [
                s
                for s in placement.locations
                if s not in now.servers
                and placement.in_location(now, placement.location(s)) < share
            ]
            if not free:
                continue
            counts = placement.of_table[tablet.table]
            target = min(free, key=lambda s: (counts[s], placement.totals[s], s))
            placement.move(now, source, target)
            yield Move(
                tablet.id, source, target, f"{location} has more than {share} of its replicas"
            )


def _of_tables(placement: Placement) -> Iterator[Move]:
    uneven = set(placement.of_table)
    while uneven:
        table = max(uneven, key=lambda t: (placement.skew(placement.of_table[t]), t))
        for source, target in placement.pairs(placement.of_table[table]):
            tablet = _fitting(placement, source, target, table)
            if tablet is not None:
                yield _taken(placement, tablet, source, target, "its table is uneven")
                break
        else:
            uneven.discard(table)


def _of_all(placement: Placement) -> Move | None:
    for source, target in placement.pairs(placement.totals):
        tablet = _fitting(placement, source, target)
        if tablet is not None:
            return _taken(placement, tablet, source, target, "the servers are uneven")
    return None


def _fitting(
    placement: Placement, source: str, target: str, table: str = ""
) -> PlacedTablet | None:
    """Return a tablet of which a replica may move between two servers; one that does not lead at best.

    Args:
        placement: as it is.
        source: the server with more replicas.
        target: the other one.
        table: only its tablets; empty: those of all tables that have more replicas on `source`.
    """

    def fits(tablet: PlacedTablet) -> bool:
        counts = placement.of_table[tablet.table]
        wanted = tablet.table == table if table else counts[source] > counts[target]
        return wanted and placement.may_move(tablet, source, target)

    found = (t for i in placement.on.get(source, ()) if fits(t := placement.tablets[i]))
    return min(found, key=lambda t: (t.leader == source, t.id), default=None)


def _taken(
    placement: Placement, tablet: PlacedTablet, source: str, target: str, reason: str
) -> Move:
    placement.move(tablet, source, target)
    return Move(tablet.id, source, target, reason)


def plan_leaders(placement: Placement) -> Iterator[Move]:
    """Return the transfers of leadership that spread the leaders of each table, then all of them.

    Args:
        placement: replicas as they are; it is not changed.
    """
    led = {t.id: t.leader for t in placement.tablets.values() if t.leader}
    totals = Counter(led.values())
    of_table: dict[str, Counter[str]] = {}
    for tablet, leader in led.items():
        of_table.setdefault(placement.tablets[tablet].table, Counter())[leader] += 1

    def transfer(fits: Counter[str], table: str, reason: str) -> Move | None:
        for source, target in placement.pairs(fits):
            for tablet in sorted(led):
                placed = placement.tablets[tablet]
                even = of_table[placed.table][source] > of_table[placed.table][target]
                if led[tablet] != source or target not in placed.servers or not placed.movable:
                    continue
                if placed.table == table or (not table and even):
                    led[tablet] = target
                    for counts in (totals, of_table[placed.table]):
                        counts[source] -= 1
                        counts[target] += 1
                    return Move(tablet, source, target, reason)
        return None

    while True:
        for table in sorted(of_table):
            while move := transfer(of_table[table], table, "the leaders of its table are uneven"):
                yield move
        move = transfer(totals, "", "the leaders are uneven")
        if move is None:
            return
        yield move
