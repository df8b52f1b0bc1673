"""Target server of a tablet's next member: the planned standby, or the best server, within the limits.

A server to which copies of the tablet have failed repeatedly is not chosen for some time (`retries.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from nyala.common.ids import ServerUuid
from nyala.common.options import Options
from nyala.master.catalog.group_state import GroupState
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.repair.observe import RepairView
from nyala.master.repair.retries import Retries
from nyala.master.repair.standby_plan import StandbyLoad, StandbyPlan


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """Choice of target servers for one tablet in one round.

    Attributes:
        tablet: as the catalog has it.
        group: state of its group.
        view: the view of this round, with what it has ordered.
        standby: the standby plan.
        options: options of this master.
        retries: replicas that were removed because they failed.
    """

    tablet: CatalogTablet
    group: GroupState
    view: RepairView
    standby: StandbyPlan
    options: Options
    retries: Retries

    def may_fill(self, server: ServerUuid) -> bool:
        """Return whether a server may get one more replica now."""
        given = self.view.joining_by_server.get(server, 0)
        options = self.options
        return len(self.view.joining) < options.repairs_max and given < options.repairs_per_server

    def replica(self, instead: ServerUuid | None) -> ServerUuid | None:
        """Return the planned standby, or the best server; None while too many copies are under way."""
        free = [
            u
            for u in self.view.known
            if self.view.is_eligible(self.tablet, u) and self.may_fill(u) and self._may_add(u)
        ]
        standby = None if instead is None else self.standby.standby_of(instead, self.tablet.id)
        return standby if standby in free else self._best_of(free)

    def in_place(self, server: ServerUuid) -> bool:
        """Return whether a member's server may get its new replica, and no other server can.

        A server that is only throttled, starting or about to report can; a dead one, one in maintenance, one
        that is decommissioned, and one to which copies have failed repeatedly cannot.
        """
        view = self.view
        if any(self._may_add(u) for u in view.alive if view.is_alternative(self.tablet, u)):
            return False
        may_evict = self.retries.may_evict(self.tablet, server, view.now_us)
        return view.is_usable(server) and self.may_fill(server) and may_evict

    def _may_add(self, server: ServerUuid) -> bool:
        return self.retries.may_add(self.tablet, server, self.view.now_us)

    def witness(self) -> ServerUuid | None:
        """Return a server for a witness: one that never had a replica of this tablet."""
        seen = self.tablet.record.reported_by
        may = self.view.is_eligible
        return self._best_of([u for u in self.view.known if may(self.tablet, u) and u not in seen])

    def _best_of(self, free: Sequence[ServerUuid]) -> ServerUuid | None:
        """Return one of `free` in another location than the replicas that stay."""
        stays = [s for s in self.group.members if not s.failed and not s.replace]
        return self.view.place(self.tablet, free, [s.uuid for s in stays], StandbyLoad())
