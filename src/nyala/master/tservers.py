"""Tablet servers known to this master: liveness, registration, and the replicas that they report.

Every master keeps liveness and registration from the heartbeats that it receives; only the leader records
reports (S0.22). The replicas of a server are known after a full report in the leader's term. Times are
monotonic microseconds of this process. On the loop only.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nyala.common.hybrid_time import from_micros
from nyala.common.ids import OpId, ServerUuid, TabletId
from nyala.raft.status import Role
from nyala.wire.proto import nyala_pb2 as pb

GONE = ("TOMBSTONED", "DELETED")
"""States of reported replicas without data to delete."""
AHEAD_US = 20_000_000
SERVERS_KEPT = 1_000
"""Number of servers above which a new one replaces the one whose last heartbeat is the oldest, unless it is
alive. A forgotten server that returns is new: it sends a full report.
"""
WITNESS = "WITNESS"
"""State of a reported replica that runs without data."""


@dataclass(frozen=True, slots=True)
class LeaderReport:
    """Report of a tablet's leader about its group.

    Attributes:
        config: op id of its committed configuration.
        health: health of the other members: texts of `ReplicaHealth`.
    """

    config: OpId
    health: Mapping[ServerUuid, str]


@dataclass(slots=True)
class TServer:
    """One tablet server as this master knows it.

    Attributes:
        registration: its last registration.
        last_heartbeat_us: time of its last heartbeat to this master.
        sequence: number of its last report that this master has recorded.
        full_in_term: term of this leader in which it recorded the last full report; 0: none.
        replicas: states of its replicas, by tablet, as of its reports; valid when `full_in_term` is
            the present term.
        versions: highest schema version that each of its replicas has reported. An applied version is
            committed, so it never decreases for a tablet.
        time: highest hybrid time of its heartbeats and answers: not below the stamps of `versions`.
        held_us: end of the holds on the history of its retired replicas, monotonic.
        tombstones: deleted replicas whose votes it keeps, as of its reports.
        leader_reports: reports of its leader replicas about their groups, by tablet.
        busy: one of its reports is being recorded.
        list_version: version of the server list that it has.
        opening: number of replicas that it still has to open; 0: it serves.
        opening_us: time of the last change of `opening`.
    """

    registration: pb.ServerInfoResponse
    last_heartbeat_us: int
    sequence: int = 0
    full_in_term: int = 0
    replicas: dict[TabletId, str] = field(default_factory=dict)
    versions: dict[TabletId, int] = field(default_factory=dict)
    time: int = 0
    held_us: dict[TabletId, int] = field(default_factory=dict)
    tombstones: dict[TabletId, None] = field(default_factory=dict)
    leader_reports: dict[TabletId, LeaderReport] = field(default_factory=dict)
    busy: bool = False
    list_version: int = 0
    opening: int = 0
    opening_us: int = 0

    @property
    def uuid(self) -> ServerUuid:
        """Its permanent id."""
        return ServerUuid(self.registration.uuid)

    def note_version(self, tablet: TabletId, version: int) -> None:
        """Note the schema version of a replica."""
        self.versions[tablet] = max(version, self.versions.get(tablet, 0))


class TServers:
    """The tablet servers that have reported to this master since it started.

    Args:
        unresponsive_us: time without a heartbeat after which a server is not alive.
        ahead_us: maximum offset of a server's time ahead of this master's.
    """

    def __init__(self, unresponsive_us: int, ahead_us: int = AHEAD_US) -> None:
        self.unresponsive_us = unresponsive_us
        self._ahead_us = ahead_us
        self._servers: dict[ServerUuid, TServer] = {}

    def record_heartbeat(self, request: pb.HeartbeatRequest, now_us: int) -> TServer:
        """Record liveness and registration. A new incarnation of a server starts with an empty record."""
        uuid = ServerUuid(request.server.uuid)
        known = self._servers.get(uuid)
        if known is None or known.registration.incarnation != request.server.incarnation:
            known = self._servers[uuid] = TServer(request.server, now_us)
            self._forget_dead(now_us)
        known.registration = request.server
        known.last_heartbeat_us = now_us
        known.time = max(known.time, request.server.hybrid_time)  # an answer may have overtaken it
        known.list_version = request.server_list.version
        if known.opening != request.opening:
            known.opening, known.opening_us = request.opening, now_us
        return known

    def _forget_dead(self, now_us: int) -> None:
        """Forget the server that was not alive for the longest time, if there are too many."""
        if len(self._servers) > SERVERS_KEPT:
            oldest = min(self._servers.values(), key=lambda server: server.last_heartbeat_us)
            if not self.is_alive(oldest, now_us):
                del self._servers[oldest.uuid]

    def forget(self, uuid: ServerUuid, now_us: int) -> None:
        """Forget a server, unless it is alive.

        Args:
            uuid: of the server.
            now_us: monotonic time, in microseconds.
        """
        known = self._servers.get(uuid)
        if known is not None and not self.is_alive(known, now_us):
            del self._servers[uuid]

    def record_report(self, server: TServer, request: pb.HeartbeatRequest, term: int) -> None:
        """Record the replicas in a report, after the catalog has recorded it.

        Args:
            server: that sent the report.
            request: its heartbeat.
            term: in which this master leads.
        """
        server.sequence = request.report_sequence
        if request.full:
            server.replicas, server.leader_reports, server.tombstones = {}, {}, {}
            server.full_in_term = term
        for report in request.tablets:
            server.leader_reports.pop(TabletId(report.tablet_id), None)
            server.tombstones.pop(TabletId(report.tablet_id), None)
            if report.state == "TOMBSTONED":
                server.tombstones[TabletId(report.tablet_id)] = None
            if report.role == Role.LEADER.value:
                server.leader_reports[TabletId(report.tablet_id)] = _leader_report(report)
            if report.state in GONE:
                server.replicas.pop(TabletId(report.tablet_id), None)
                server.versions.pop(TabletId(report.tablet_id), None)
                server.held_us.pop(TabletId(report.tablet_id), None)
            else:
                server.note_version(TabletId(report.tablet_id), report.schema_version)
                if report.retired_at:
                    until_us = server.last_heartbeat_us + report.held_ms * 1000
                    server.held_us[TabletId(report.tablet_id)] = until_us
                witness = report.witness and report.state == "RUNNING"
                server.replicas[TabletId(report.tablet_id)] = WITNESS if witness else report.state

    def schema_version(self, tablet: TabletId) -> int:
        """Return the highest schema version that a replica of a tablet has reported."""
        return max((s.versions.get(tablet, 0) for s in self._servers.values()), default=0)

    def time(self, now_us: int) -> int:
        """Return a hybrid time above the stamp of every version that a replica has reported.

        Servers whose clock is too far ahead are ignored: no group accepts their stamps.

        Args:
            now_us: microseconds since the epoch.
        """
        limit = from_micros(now_us + self._ahead_us)
        return max((s.time for s in self._servers.values() if s.time <= limit), default=0)

    def get(self, uuid: ServerUuid) -> TServer | None:
        """Return a server by id, alive or not."""
        return self._servers.get(uuid)

    def all(self) -> list[TServer]:
        """Return every known server, by id."""
        return [self._servers[uuid] for uuid in sorted(self._servers)]

    def alive(self, now_us: int) -> list[TServer]:
        """Return the servers that reported recently, by id."""
        return [s for s in self.all() if self.is_alive(s, now_us)]

    def is_alive(self, server: TServer, now_us: int) -> bool:
        """Return whether a server reported to this master within `unresponsive_us`."""
        return now_us - server.last_heartbeat_us < self.unresponsive_us

    def known_in(self, term: int, servers: Iterable[TServer]) -> list[TServer]:
        """Return the servers with a full report in this term."""
        return [s for s in servers if s.full_in_term == term]


def _leader_report(report: pb.TabletReport) -> LeaderReport:
    at = OpId(report.consensus.config_term, report.consensus.config_index)
    return LeaderReport(at, {ServerUuid(h.uuid): _health(h) for h in report.health})


def _health(health: pb.MemberHealth) -> str:
    return "FAILED_UNRECOVERABLE" if health.unrecoverable else health.state
