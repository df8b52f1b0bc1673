"""Repair, one look at a time: catalog and latest reports to orders about members, copies and leftovers.

What it remembers of looks before is only how far copies are. Which server gets a replica is a function of
tablet, configuration and loads; of two masters that both believe to lead one wins, by compare-and-set.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random

from nyala.common.ids import ServerUuid, TabletId
from nyala.master.actions import (
    Action,
    CancelCopyAction,
    ChangeMembersAction,
    CopyAction,
    DeleteTabletAction,
)
from nyala.master.catalog import Catalog
from nyala.master.placement import Candidate, place_one
from nyala.master.records import Tablet, TabletState
from nyala.master.repair import Add, Copy, Health, Seat, Situation, next_steps
from nyala.master.tservers import TServer, TServers
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Pace and limits.

    Attributes:
        on: whether anything is repaired.
        interval_ms: between two looks.
        failed_us: a copy that has not moved for so long has failed.
        per_server: replicas that one server is given at a time.
        most: replicas that are given at a time in all.
    """

    on: bool = True
    interval_ms: int = 1000
    failed_us: int = 300_000_000
    per_server: int = 4
    most: int = 64


DEFAULT_LIMITS = RepairLimits()


@dataclass(slots=True)
class _Copying:
    """How far a copy is, and since when."""

    told: tuple[object, ...]
    moved_us: int


@dataclass(slots=True)
class _Look:
    """One look at everything."""

    known: Mapping[ServerUuid, TServer]
    now_us: int
    loads: dict[ServerUuid, int]
    maintained: tuple[str, ...]
    coming: dict[tuple[TabletId, ServerUuid], None] = field(default_factory=dict)
    given: dict[ServerUuid, int] = field(default_factory=dict)
    actions: list[Action] = field(default_factory=list)


class Repairs:
    """The repairs of one leader in one term. On the loop only.

    Args:
        catalog: of this term.
        servers: who lives, and what they report.
        term: in which this master leads.
        limits: pace and limits.
        now_us: monotonic time.
    """

    def __init__(
        self,
        catalog: Catalog,
        servers: TServers,
        term: int,
        limits: RepairLimits,
        now_us: Callable[[], int],
    ) -> None:
        self.limits = limits
        self._catalog = catalog
        self._servers = servers
        self._term = term
        self._now_us = now_us
        self._copies: dict[tuple[TabletId, ServerUuid], _Copying] = {}

    def needed(self) -> list[Action]:
        """Return what some servers should be told now."""
        if not self.limits.on:
            return []
        look = self._look()
        tablets = [t for t in self._catalog.tablets() if t.state is TabletState.RUNNING]
        for tablet in tablets:
            self._count(tablet, look)
        for tablet in tablets:
            self._repair(tablet, look)
        self._leftovers(look)
        self._forget(look)
        return look.actions

    def copied(self, action: CopyAction | CancelCopyAction, told: pb.CopyProgress | None) -> None:
        """Take what a server says of a copy; None: it was cancelled."""
        key, now_us = (action.tablet, action.server), self._now_us()
        if told is None:
            self._copies.pop(key, None)
            return
        moved = (told.stage, told.bytes_done, told.log_bytes)
        before = self._copies.get(key)
        if before is None or (before.told != moved and not told.HasField("error")):
            self._copies[key] = _Copying(moved, now_us)

    # ---- one look ----------------------------------------------------------------------------------

    def _look(self) -> _Look:
        now_us = self._now_us()
        known = self._servers.known_in(self._term, self._servers.alive(now_us))
        by_uuid = {s.uuid: s for s in known}
        return _Look(by_uuid, now_us, self._catalog.replica_counts(), ())

    def _count(self, tablet: Tablet, look: _Look) -> None:
        for member in tablet.consensus.members:
            if member.promote and not member.voter:
                uuid = ServerUuid(member.uuid)
                look.coming[tablet.id, uuid] = None
                look.given[uuid] = look.given.get(uuid, 0) + 1

    def _repair(self, tablet: Tablet, look: _Look) -> None:
        situation = self._situation(tablet, look)
        if situation is None or situation.whole:
            return

        def choose(instead: ServerUuid | None) -> ServerUuid | None:
            return self._choose(tablet, situation, look)

        leader = situation.leader
        for step in next_steps(situation, choose):
            if not isinstance(step, Copy):
                look.actions.append(ChangeMembersAction(leader, tablet.id, tablet.config_id, step))
            elif step.server in look.known:
                self._copies.setdefault((tablet.id, step.server), _Copying((), look.now_us))
                look.actions.append(CopyAction(step.server, tablet.id, leader))
            if isinstance(step, Add):
                look.coming[tablet.id, step.server] = None
                look.given[step.server] = look.given.get(step.server, 0) + 1
                look.loads[step.server] = look.loads.get(step.server, 0) + 1

    def _situation(self, tablet: Tablet, look: _Look) -> Situation | None:
        """Return what is known of a tablet; None while its leader has not told of this configuration."""
        leader = look.known.get(ServerUuid(tablet.consensus.leader))
        word = None if leader is None else leader.words.get(tablet.id)
        table = self._catalog.table(tablet.table_id)
        if leader is None or word is None or word.config != tablet.config_id or table is None:
            return None
        seats = tuple(
            self._seat(tablet, m, m.uuid == leader.uuid, word.health, look)
            for m in tablet.consensus.members
        )
        return Situation(leader.uuid, table.spec.replicas, seats)

    def _seat(
        self,
        tablet: Tablet,
        member: pb.Member,
        leads: bool,
        health: Mapping[ServerUuid, str],
        look: _Look,
    ) -> Seat:
        uuid = ServerUuid(member.uuid)
        server = look.known.get(uuid)
        state = None if server is None else server.replicas.get(tablet.id)
        said = Health.FINE if leads else Health(health.get(uuid, Health.SILENT.value))
        if not leads:
            said = self._judged(tablet.id, member, said, state, look)
        return Seat(
            uuid,
            member.voter,
            member.promote,
            member.replace,
            said,
            holds=server is None or state not in (None, "FAILED"),
            load=look.loads.get(uuid, 0),
            location="" if server is None else server.registration.location,
        )

    def _judged(
        self, tablet: TabletId, member: pb.Member, said: Health, state: str | None, look: _Look
    ) -> Health:
        """Return what a member's own server, and its copy, make of its leader's word."""
        uuid = ServerUuid(member.uuid)
        if uuid in look.maintained or state == "BOOTSTRAPPING":
            return Health.FINE if said is Health.FINE else Health.SILENT
        if uuid not in look.known:
            return said
        lost = state in (None, "FAILED")
        if member.voter:
            return Health.FAILED if lost and said is not Health.FINE else said
        if not lost:
            return said
        copying = self._copies.get((tablet, uuid))
        stuck = copying is not None and look.now_us - copying.moved_us > self.limits.failed_us
        return Health.FAILED if stuck else Health.FINE

    def _choose(self, tablet: Tablet, situation: Situation, look: _Look) -> ServerUuid | None:
        if len(look.coming) >= self.limits.most:
            return None
        free = [
            Candidate(s.uuid, s.registration.location, look.loads.get(s.uuid, 0))
            for s in look.known.values()
            if s.uuid not in tablet.members
            and tablet.id not in s.replicas
            and s.uuid not in look.maintained
            and look.given.get(s.uuid, 0) < self.limits.per_server
        ]
        stays = [s for s in situation.seats if s.health is not Health.FAILED and not s.replace]
        taken = [s.location for s in stays if s.location]
        found = place_one(free, taken, Random(f"{tablet.id} {tablet.config_id}"))
        return None if found is None else found.uuid

    def _leftovers(self, look: _Look) -> None:
        """Order what no configuration names any more to be deleted (S0.44, S0.45, S1.10, S1.22)."""
        for server in look.known.values():
            for tablet_id in server.replicas:
                tablet = self._catalog.tablet(tablet_id)
                if tablet is None or tablet.state is not TabletState.RUNNING:
                    continue
                if server.uuid not in tablet.members:
                    look.actions.append(DeleteTabletAction(server.uuid, tablet_id))

    def _forget(self, look: _Look) -> None:
        """Let go of copies that are over, and end those that nobody needs any more."""
        for tablet_id, uuid in list(self._copies):
            tablet = self._catalog.tablet(tablet_id)
            if (tablet_id, uuid) in look.coming:
                continue
            if (
                tablet is None
                or not tablet.live
                or uuid in tablet.members
                or uuid not in look.known
            ):
                del self._copies[tablet_id, uuid]
            else:
                look.actions.append(CancelCopyAction(uuid, tablet_id))
