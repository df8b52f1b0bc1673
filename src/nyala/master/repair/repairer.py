"""Repair: from the catalog and the latest reports to changes of members, copies and deletions.

Only the progress of copies, the times of failed ones and the standby plan are kept between rounds. Each
change is a function of the committed configuration and the reports. If two masters believe to lead,
compare-and-set lets one of them succeed.
"""

from collections.abc import Callable, Iterable

from nyala.common.ids import ServerUuid, TabletId
from nyala.common.options import Options
from nyala.master.catalog.actions import (
    Action,
    CancelCopyAction,
    ChangeMembersAction,
    CopyAction,
    DeleteTabletAction,
    WitnessAction,
)
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.group_state import (
    Add,
    Copy,
    GroupState,
    MakeWitness,
    Modify,
    Remove,
    TargetServers,
)
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.repair.next_steps import next_steps
from nyala.master.repair.observe import RepairView, group_state
from nyala.master.repair.ordered_copies import OrderedCopies
from nyala.master.repair.retries import Retries
from nyala.master.repair.round_robin import ReplicaRoundRobin, TabletRoundRobin
from nyala.master.repair.standby_plan import StandbyPlan
from nyala.master.repair.target import TargetChoice
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb

MAX_CHECKED = 500
"""Number of tablets, and of replicas per server, that a round checks besides those with new reports."""


class Repairer:
    """Repair of one leader in one term. On the loop only.

    Args:
        catalog: catalog of this term.
        servers: the tablet servers known to this master, and what they report.
        term: in which this master leads.
        options: options of this master.
        now_us: monotonic time.

    Attributes:
        standby: the standby plan.
    """

    def __init__(
        self,
        catalog: Catalog,
        servers: TServers,
        term: int,
        options: Options,
        now_us: Callable[[], int],
    ) -> None:
        self._options = options
        self._catalog = catalog
        self._servers = servers
        self._term = term
        self._now_us = now_us
        self._copies = OrderedCopies(options.member_failed_after_ms * 1000)
        self._retries = Retries(options.member_failed_after_ms * 1000)
        self._tablet_rounds = TabletRoundRobin(catalog, MAX_CHECKED)
        self._turns = ReplicaRoundRobin(MAX_CHECKED)
        self.standby = StandbyPlan()

    def due_orders(self) -> list[Action]:
        """Return the orders that are due now."""
        view = self._make_view()
        if self._tablet_rounds.at_start():
            self.standby.retain(self._runs)
        tablets = [t for t in self._tablet_rounds.next_tablets() if self._repairable(t)]
        self.standby.update(tablets, view, len(view.known))
        if self._options.repair != "on":
            return []
        for tablet in filter(self._repairable, self._catalog.moving()):
            for member in tablet.consensus.members:
                if member.promote and not (member.voter and member.electable):
                    view.count_joining(tablet.id, ServerUuid(member.uuid))
        actions: list[Action] = []
        for tablet in tablets:
            actions += self._repair(tablet, view)
        return [*actions, *self._unneeded_replicas(view), *self._unneeded(view)]

    def reported(self, tablets: Iterable[TabletId]) -> None:
        """Check these tablets first in the next round."""
        self._tablet_rounds.prioritize(tablets)

    def record_copy_progress(self, action: CopyAction, progress: pb.CopyProgress) -> None:
        """Record the progress of a copy."""
        self._copies.note_progress(action.tablet, action.server, progress, self._now_us())

    def cancelled(self, action: CancelCopyAction) -> None:
        """Record that a copy has ended."""
        self._copies.forget(action.tablet, action.server)

    def _make_view(self) -> RepairView:
        now_us = self._now_us()
        alive = self._servers.alive(now_us)
        known = self._servers.known_in(self._term, alive)
        listed = self._catalog.servers.all()
        by_uuid = {s.uuid: s for s in known}
        return RepairView(
            by_uuid,
            now_us,
            self._catalog.replica_counts(),
            self._catalog.tablets_of,
            tuple(s.uuid for s in alive),
            tuple(s.uuid for s in listed if s.maintenance),
            tuple(s.uuid for s in listed if s.decommission),
        )

    def _repairable(self, tablet: CatalogTablet) -> bool:
        """Return whether a tablet runs; one without a table's record is left alone (S0.77)."""
        return tablet.runs and self._catalog.table(tablet.table_id) is not None

    def _runs(self, tablet_id: TabletId) -> bool:
        tablet = self._catalog.tablet(tablet_id)
        return tablet is not None and self._repairable(tablet)

    def _repair(self, tablet: CatalogTablet, view: RepairView) -> list[Action]:
        table = self._catalog.table(tablet.table_id)
        assert table is not None, f"tablet {tablet.id} has no table {tablet.table_id}"
        now = group_state(tablet, table.spec, view, self._copies)
        if now is None or now.fully_replicated:
            return []
        self._tablet_rounds.prioritize([tablet.id])
        choice = TargetChoice(tablet, now, view, self.standby, self._options, self._retries)
        servers = TargetServers(choice.replica, choice.witness, choice.may_fill, choice.in_place)
        actions: list[Action] = []
        for step in next_steps(now, servers):
            if not isinstance(step, Copy | MakeWitness):
                change = ChangeMembersAction(now.leader, tablet.id, tablet.config_id, step)
                actions.append(change)
            elif step.server in view.known:
                self._copies.ordered(tablet.id, step.server, view.now_us)
                order = CopyAction if isinstance(step, Copy) else WitnessAction
                actions.append(order(step.server, tablet.id, now.leader))
            if isinstance(step, Remove):
                self._note_removal(tablet, now, step, view)
            if isinstance(step, Add):
                self._copies.forget(tablet.id, step.server)  # an earlier copy does not count
                view.count_added(tablet, step.server)
            gets_data = isinstance(step, Add) and not step.witness
            if gets_data or (isinstance(step, Modify) and step.promote):
                view.count_joining(tablet.id, step.server)
        return actions

    def _note_removal(
        self, tablet: CatalogTablet, group: GroupState, step: Remove, view: RepairView
    ) -> None:
        """Record why a member is removed; a server that gets its new replica counts towards the limits."""
        if step.in_place:
            view.count_joining(tablet.id, step.server)
            self._retries.evicted(tablet, step.server, view.now_us)
        elif any(s.uuid == step.server and s.failed for s in group.joining):
            self._retries.copy_failed(tablet, step.server, view.now_us)

    def _unneeded_replicas(self, view: RepairView) -> list[Action]:
        """Return orders to delete replicas without a configuration (S0.44, S0.45, S1.10, S1.22)."""
        actions: list[Action] = []
        for server in view.known.values():
            for tablet_id in self._turns.next(server):
                tablet = self._catalog.tablet(tablet_id)
                if tablet is None or not self._repairable(tablet):
                    continue
                if server.uuid not in tablet.members:
                    actions.append(DeleteTabletAction(server.uuid, tablet_id))
        return actions

    def _unneeded(self, view: RepairView) -> list[Action]:
        """Remove copies that have ended, and return orders to cancel those no longer needed."""
        actions: list[Action] = []
        for tablet_id, uuid in self._copies:
            tablet = self._catalog.tablet(tablet_id)
            if (tablet_id, uuid) in view.joining:
                continue
            live = tablet is not None and tablet.live
            if not live or uuid not in view.known or (tablet and uuid in tablet.members):
                self._copies.forget(tablet_id, uuid)
            else:
                actions.append(CancelCopyAction(uuid, tablet_id))
        return actions
