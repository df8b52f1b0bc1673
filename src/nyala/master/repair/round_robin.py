"""Round-robin over replicas and tablets, a bounded number at a time, so that each round stays cheap.

On the loop only.
"""

from collections.abc import Callable, Collection, Iterable
from itertools import islice

from nyala.common import addresses
from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.tservers import SERVERS_KEPT, TServer


class ReplicaRoundRobin:
    """Round-robin over the replicas of each server.

    Args:
        most: maximum number of replicas of one server at a time.
        reported: returns the replicas of a server; by default, those that are not deleted.
    """

    def __init__(
        self,
        most: int,
        reported: Callable[[TServer], Collection[TabletId]] = lambda server: server.replicas,
    ) -> None:
        self._most = most
        self._reported = reported
        self._next: dict[ServerUuid, int] = {}

    def next(self, server: TServer) -> list[TabletId]:
        """Return the next replicas of a server, starting over after the last one."""
        begin, reported = self._next.get(server.uuid, 0), self._reported(server)
        if begin >= len(reported):
            begin = 0
        addresses.keep_newest(self._next, server.uuid, begin + self._most, SERVERS_KEPT)
        return list(islice(reported, begin, begin + self._most))


class TabletRoundRobin:
    """Round-robin over all tablets, with prioritised ones first.

    Correctness does not depend on `prioritize`: other tablets are checked one round later.

    Args:
        catalog: has the tablets.
        most: maximum number of tablets of either kind at a time.
    """

    def __init__(self, catalog: Catalog, most: int) -> None:
        self._catalog = catalog
        self._most = most
        self._next = 0
        self._asked: dict[TabletId, None] = {}

    def prioritize(self, tablets: Iterable[TabletId]) -> None:
        """Return these tablets first in the next round."""
        self._asked.update(dict.fromkeys(tablets))

    def at_start(self) -> bool:
        """Return whether the next call of `next_tablets` starts a round."""
        return self._next >= self._catalog.size

    def next_tablets(self) -> list[CatalogTablet]:
        """Return the tablets to check now."""
        if self.at_start():
            self._next = 0
        more = self._catalog.tablets_from(self._next, self._most)
        self._next += self._most
        asked = list(islice(self._asked, self._most))
        for tablet_id in (*asked, *(t.id for t in more)):
            self._asked.pop(tablet_id, None)
        first = (self._catalog.tablet(t) for t in asked)
        return list({t.id: t for t in (*first, *more) if t is not None}.values())
