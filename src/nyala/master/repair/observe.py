"""View of catalog and reports for one round of repair: servers, load, and the state of each member."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.master.catalog.group_state import GroupState, ReplicaHealth, ReplicaState
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.ddl.placement import Candidate, place_one
from nyala.master.ddl.table_spec import WITNESS_FIRST
from nyala.master.repair.ordered_copies import OrderedCopies
from nyala.master.repair.standby_plan import StandbyLoad
from nyala.master.tservers import WITNESS, TServer
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(slots=True)
class RepairView:
    """Catalog and reports, as one round of repair sees them.

    Attributes:
        known: live servers whose replicas are known from a full report in this term.
        now_us: monotonic.
        alive: live servers, whether or not they have sent a full report in this term.
        loads: number of replicas that each server is to have, including orders of this round.
        tablets_of: the live tablets of a table.
        maintained: servers in maintenance.
        leaving: decommissioned servers.
        joining: members that are to be promoted.
        joining_by_server: number of members to be promoted, by server.
    """

    known: Mapping[ServerUuid, TServer]
    now_us: int
    loads: dict[ServerUuid, int]
    tablets_of: Callable[[TableId], Iterable[CatalogTablet]]
    alive: tuple[ServerUuid, ...] = ()
    maintained: tuple[str, ...] = ()
    leaving: tuple[str, ...] = ()
    joining: dict[tuple[TabletId, ServerUuid], None] = field(default_factory=dict)
    joining_by_server: dict[ServerUuid, int] = field(default_factory=dict)
    _of_table: dict[TableId, Counter[str]] = field(default_factory=dict)

    def count_added(self, tablet: CatalogTablet, server: ServerUuid) -> None:
        """Count a replica that this round orders."""
        self.loads[server] = self.loads.get(server, 0) + 1
        self._of(tablet.table_id)[server] += 1

    def count_joining(self, tablet: TabletId, server: ServerUuid) -> None:
        """Count a member that is to be promoted."""
        self.joining[tablet, server] = None
        self.joining_by_server[server] = self.joining_by_server.get(server, 0) + 1

    def location(self, uuid: ServerUuid) -> str:
        """Return the location of a server; empty: unknown, or not alive."""
        server = self.known.get(uuid)
        return "" if server is None else server.registration.location

    def is_eligible(self, tablet: CatalogTablet, standby: ServerUuid) -> bool:
        """Return whether a server may get a replica of a tablet."""
        return (
            self.is_usable(standby)
            and standby not in tablet.members
            and tablet.id not in self.known[standby].replicas
        )

    def is_usable(self, uuid: ServerUuid) -> bool:
        """Return whether a server may get replicas at all."""
        server = self.known.get(uuid)
        excluded = uuid in (*self.maintained, *self.leaving)
        return server is not None and not server.opening and not excluded

    def is_alternative(self, tablet: CatalogTablet, uuid: ServerUuid) -> bool:
        """Return whether a live server is eligible for a replica of a tablet, now or soon."""
        return uuid not in tablet.members and uuid not in (*self.maintained, *self.leaving)

    def choose(
        self, tablet: CatalogTablet, lost: ServerUuid, assigned: StandbyLoad
    ) -> ServerUuid | None:
        """Return the best server for a replica instead of that on `lost`.

        Args:
            tablet: that loses a replica.
            lost: the server whose replica is replaced.
            assigned: replicas already assigned to each server.
        """
        free = [u for u in self.known if self.is_eligible(tablet, u)]
        return self.place(tablet, free, [m for m in tablet.members if m != lost], assigned)

    def place(
        self,
        tablet: CatalogTablet,
        free: Sequence[ServerUuid],
        others: Sequence[ServerUuid],
        more: StandbyLoad,
    ) -> ServerUuid | None:
        """Return one of `free`, by load and location; deterministic for a given state.

        Replicas of the same table count first, as in the creation of a table.

        Args:
            tablet: that gets a replica.
            free: servers to choose from.
            others: servers of the replicas that stay.
            more: replicas already assigned to each server.
        """
        if not free:
            return None
        of_table = self._of(tablet.table_id)
        candidates = [
            Candidate(
                u,
                self.location(u),
                self.loads.get(u, 0) + more.of_all.get(u, 0),
                of_table[u] + more.of_table.get(u, 0),
            )
            for u in free
        ]
        taken = [where for u in others if (where := self.location(u))]
        found = place_one(candidates, taken, Random(f"{tablet.id} {tablet.config_id}"))
        return None if found is None else found.uuid

    def _of(self, table: TableId) -> Counter[str]:
        """Return how many replicas of a table each server is to have."""
        found = self._of_table.get(table)
        if found is None:
            found = Counter(m for tablet in self.tablets_of(table) for m in tablet.members)
            self._of_table[table] = found
        return found


def group_state(
    tablet: CatalogTablet, table: pb.TableSpec, view: RepairView, copies: OrderedCopies
) -> GroupState | None:
    """Return the state of a tablet's group; None while its leader has not reported this configuration.

    Args:
        tablet: as the catalog has it.
        table: definition with the wanted number of replicas.
        view: the view of this round.
        copies: that repair has ordered.
    """
    leader = view.known.get(ServerUuid(tablet.consensus.leader))
    report = None if leader is None else leader.leader_reports.get(tablet.id)
    if leader is None or report is None or report.config != tablet.config_id:
        return None
    health = {u: _HEALTH.get(state, ReplicaHealth.SILENT) for u, state in report.health.items()}
    health[leader.uuid] = ReplicaHealth.HEALTHY
    members = tuple(
        _replica_state(
            tablet.id,
            member,
            health.get(ServerUuid(member.uuid), ReplicaHealth.SILENT),
            view,
            copies,
        )
        for member in tablet.consensus.members
    )
    first = table.options.get(WITNESS_FIRST) == "on"
    return GroupState(leader.uuid, table.replicas, members, witness_first=first)


_HEALTH = {h.value: h for h in ReplicaHealth}


def _replica_state(
    tablet: TabletId,
    member: pb.Member,
    health: ReplicaHealth,
    view: RepairView,
    copies: OrderedCopies,
) -> ReplicaState:
    uuid = ServerUuid(member.uuid)
    server = view.known.get(uuid)
    lost = server is not None and server.replicas.get(tablet) in (None, "FAILED")
    return ReplicaState(
        uuid,
        member.voter,
        member.promote,
        member.replace or (member.voter and uuid in view.leaving),
        member.electable,
        _health_of(tablet, member, health, view, copies),
        holds=not lost,
        log_only=server is not None and server.replicas.get(tablet) == WITNESS,
        load=view.loads.get(uuid, 0),
        location=view.location(uuid),
    )


def _health_of(
    tablet: TabletId,
    member: pb.Member,
    reported: ReplicaHealth,
    view: RepairView,
    copies: OrderedCopies,
) -> ReplicaHealth:
    """Return a member's health from the reports of its leader and its own server, and from its copy.

    A server in maintenance is waited for, and one that opens its replicas as long as it makes progress. A
    silent voter whose server reports it as FAILED or missing has failed at once, and cannot recover once its
    leader has reported it as FAILED too. A copy may take long as long as it makes progress.
    """
    uuid = ServerUuid(member.uuid)
    server = view.known.get(uuid)
    state = None if server is None else server.replicas.get(tablet)
    if uuid in view.maintained or _opens(server, state, view.now_us, copies.failed_us):
        return ReplicaHealth.HEALTHY if reported is ReplicaHealth.HEALTHY else ReplicaHealth.SILENT
    if server is None or state not in (None, "FAILED"):
        return reported
    if member.voter:
        if reported.failed:
            return ReplicaHealth.UNRECOVERABLE
        return reported if reported is ReplicaHealth.HEALTHY else ReplicaHealth.FAILED
    return (
        ReplicaHealth.FAILED if copies.stuck(tablet, uuid, view.now_us) else ReplicaHealth.HEALTHY
    )


def _opens(server: TServer | None, state: str | None, now_us: int, failed_us: int) -> bool:
    """Return whether a replica is being opened, or was opened so recently that its leader may not know."""
    if server is None or state in (None, "FAILED"):
        return False
    moved = bool(server.opening_us) and now_us - server.opening_us <= failed_us
    return moved or (state == "BOOTSTRAPPING" and not server.opening)
