"""Target server of a tablet's next member: the planned standby, or the best server, within the limits."""

from collections.abc import Sequence
from dataclasses import dataclass

from nyala.common.ids import ServerUuid
from nyala.common.options import Options
from nyala.master.catalog.group_state import GroupState, ReplicaHealth
from nyala.master.catalog.records import CatalogTablet
from nyala.master.repair.observe import RepairView
from nyala.master.repair.standby_plan import StandbyLoad, StandbyPlan


@dataclass(frozen=True, slots=True)
class TargetChoice:
    """Choice of target servers for one tablet in one round.

    Attributes:
        tablet: as the catalog has it.
        now: state of its group.
        look: the view of this round, with what it has ordered.
        standby: the standby plan.
        options: of this master.
    """

    tablet: CatalogTablet
    now: GroupState
    look: RepairView
    standby: StandbyPlan
    options: Options

    def may_fill(self, server: ServerUuid) -> bool:
        """Return whether a server may get one more replica now."""
        given = self.look.given.get(server, 0)
        options = self.options
        return len(self.look.joining) < options.repairs_max and given < options.repairs_per_server

    def replica(self, instead: ServerUuid | None) -> ServerUuid | None:
        """Return the planned standby, or the best server; None while too many copies are under way."""
        free = [
            u for u in self.look.known if self.look.may_inherit(self.tablet, u) and self.may_fill(u)
        ]
        heir = None if instead is None else self.standby.heir(instead, self.tablet.id)
        return heir if heir in free else self._beside(free)

    def witness(self) -> ServerUuid | None:
        """Return a server for a witness: one that never had a replica of this tablet."""
        seen = self.tablet.record.reported_by
        may = self.look.may_inherit
        return self._beside([u for u in self.look.known if may(self.tablet, u) and u not in seen])

    def _beside(self, free: Sequence[ServerUuid]) -> ServerUuid | None:
        """Return one of `free` in another location than the replicas that stay."""
        stays = [
            s for s in self.now.members if s.health is not ReplicaHealth.FAILED and not s.replace
        ]
        return self.look.place(self.tablet, free, [s.uuid for s in stays], StandbyLoad())
