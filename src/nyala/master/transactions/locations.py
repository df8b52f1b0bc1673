"""Addresses of the leaders of tablets, from the catalog, the reports, and the answers of the servers."""

from collections.abc import Collection

from nyala.common.errors import NotLeader, NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.master.catalog.catalog import Catalog
from nyala.master.tservers import TServers


class LeaderLocations:
    """Addresses to which requests about tablets are sent next. On the loop only.

    Args:
        catalog: catalog of this term.
        servers: the tablet servers and their addresses.
    """

    def __init__(self, catalog: Catalog, servers: TServers) -> None:
        self._catalog = catalog
        self._servers = servers
        self._hints: dict[TabletId, str] = {}
        self._led: dict[TabletId, str] = {}  # by the server that answered as the leader last

    def address(self, tablet: TabletId) -> str | None:
        """Return the address to try next; None: no server of the tablet is known."""
        known = self._candidates(tablet)
        hint = self._hints.get(tablet)
        if hint is not None and (hint in known or not known):
            return hint
        return known[0] if known else None

    def leads(self, tablet: TabletId, address: str) -> None:
        """Note that a server answered as the leader."""
        self._hints[tablet] = self._led[tablet] = address

    def one_leads(self, tablets: Collection[TabletId]) -> bool:
        """Return whether one server has answered as the leader of all of some tablets."""
        found = {self._led.get(t) for t in tablets}
        return len(found) < 2 and None not in found

    def failed(self, tablet: TabletId, address: str, error: NyalaError) -> None:
        """Note that a server did not answer as the leader; the next one is tried.

        Args:
            tablet: that it was asked about.
            address: of the server.
            error: its answer, which may name the leader.
        """
        self._led.pop(tablet, None)
        known = self._candidates(tablet)
        named = error.address if isinstance(error, NotLeader) else None
        if named and named != address and named in known:
            self._hints[tablet] = named
        elif known:
            at = known.index(address) + 1 if address in known else 0
            self._hints[tablet] = known[at % len(known)]

    def _candidates(self, tablet_id: TabletId) -> list[str]:
        """Return the addresses of the members, that of the last known leader first."""
        tablet = self._catalog.tablet(tablet_id)
        if tablet is None:
            return []
        found: dict[str, None] = {}
        leader = ServerUuid(tablet.consensus.leader)
        for uuid in (leader, *tablet.members):
            server = self._servers.get(uuid) if uuid in tablet.members else None
            if server is not None:
                found[server.registration.address] = None
        for member in tablet.consensus.members:
            if member.address:
                found.setdefault(member.address)
        return list(found)
