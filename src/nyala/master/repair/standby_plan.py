"""Standby plan: for each tablet server, the servers that would take over its replicas if it were lost.

It is made ahead and used when a server is lost. A choice is kept while it is valid, so that the plan shown to
operators is the one used. When servers join, standbys with more than their share give up some of it. Pure:
the valid choices and the load of servers are passed in.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.master.catalog.records.tables import CatalogTablet


@dataclass(frozen=True, slots=True)
class StandbyLoad:
    """Replicas of one lost server that the plan already gives to each other server.

    Attributes:
        of_all: number of replicas, by standby server.
        of_table: number of replicas of one table, by standby server.
    """

    of_all: Mapping[ServerUuid, int] = field(default_factory=dict)
    of_table: Mapping[ServerUuid, int] = field(default_factory=dict)


class StandbyChoice(Protocol):
    """Choice of standby servers."""

    def is_eligible(self, tablet: CatalogTablet, standby: ServerUuid) -> bool:
        """Return whether a server may get a replica of a tablet now."""
        ...

    def choose(
        self, tablet: CatalogTablet, lost: ServerUuid, assigned: StandbyLoad
    ) -> ServerUuid | None:
        """Return the best standby server for a replica.

        Args:
            tablet: that loses a replica.
            lost: the server whose replica is replaced.
            assigned: replicas already assigned to each server.
        """
        ...


class StandbyPlan:
    """Standby servers of each member of each tablet, of one leader in one term. On the loop only."""

    def __init__(self) -> None:
        self._standbys: dict[TabletId, dict[ServerUuid, ServerUuid]] = {}
        self._assigned: dict[ServerUuid, dict[ServerUuid, int]] = {}
        self._assigned_of_table: dict[tuple[ServerUuid, TableId], Counter[ServerUuid]] = {}
        self._tables: dict[TabletId, TableId] = {}
        self._servers = 0
        self._to_share: dict[TabletId, None] = {}
        self._shares: dict[ServerUuid, int] = {}

    def update(self, tablets: Sequence[CatalogTablet], choice: StandbyChoice, servers: int) -> None:
        """Bring the plan of some tablets up to date.

        Args:
            tablets: live tablets; of a large cluster a part at a time.
            choice: chooses standby servers.
            servers: number of servers.
        """
        if servers > self._servers:
            self._to_share = dict.fromkeys(self._standbys)
            self._shares = {
                u: _share(assigned, servers - self._servers)
                for u, assigned in self._assigned.items()
            }
        self._servers = servers
        for tablet in tablets:
            self._plan_tablet(tablet, choice, share=tablet.id in self._to_share)
            self._to_share.pop(tablet.id, None)

    def retain(self, lives: Callable[[TabletId], bool]) -> None:
        """Remove deleted tablets."""
        for deleted in [t for t in self._standbys if not lives(t)]:
            self._forget(deleted)

    def standby_of(self, lost: ServerUuid, tablet: TabletId) -> ServerUuid | None:
        """Return the standby server of a lost member; None: there is none."""
        return self._standbys.get(tablet, {}).get(lost)

    def of(self, server: ServerUuid) -> dict[TabletId, ServerUuid]:
        """Return the standby servers of one server, by tablet."""
        return {t: of[server] for t, of in self._standbys.items() if server in of}

    def _plan_tablet(self, tablet: CatalogTablet, choice: StandbyChoice, *, share: bool) -> None:
        before = self._standbys.get(tablet.id, {})
        stay: dict[ServerUuid, ServerUuid] = {}
        for lost in tablet.members:
            standby = before.get(lost)
            if standby is None or not choice.is_eligible(tablet, standby):
                continue
            if not share or self._assigned[lost][standby] <= self._shares[lost]:
                stay[lost] = standby
        if len(stay) == len(before) == len(tablet.members):
            return
        self._forget(tablet.id)
        for lost in tablet.members:
            assigned = self._assigned.setdefault(lost, {})
            assigned_of_table = self._assigned_of_table.get((lost, tablet.table_id), Counter())
            standby = stay.get(lost) or choice.choose(
                tablet, lost, StandbyLoad(assigned, assigned_of_table)
            )
            if standby is not None:
                self._standbys.setdefault(tablet.id, {})[lost] = standby
                self._tables[tablet.id] = tablet.table_id
                assigned[standby] = assigned.get(standby, 0) + 1
                assigned_of_table[standby] += 1
                self._assigned_of_table[lost, tablet.table_id] = assigned_of_table

    def _forget(self, tablet: TabletId) -> None:
        table = self._tables.pop(tablet, TableId(""))
        for lost, standby in self._standbys.pop(tablet, {}).items():
            self._assigned[lost][standby] -= 1
            assigned_of_table = self._assigned_of_table[lost, table]
            assigned_of_table[standby] -= 1
            if not assigned_of_table[standby]:
                del assigned_of_table[standby]
            if not assigned_of_table:
                del self._assigned_of_table[lost, table]


def _share(assigned: Mapping[ServerUuid, int], added_servers: int) -> int:
    """Return the maximum share of a standby server after other servers have joined."""
    standbys = sum(n > 0 for n in assigned.values()) + added_servers
    return -(-sum(assigned.values()) // standbys)
