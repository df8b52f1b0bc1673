"""Heartbeats of tablet servers: every master records liveness, the leader records the reports.

The response has whether this master leads, whether it needs a full report, and the last report that was
recorded; reports that are not acknowledged are sent again (S0.21-S0.27, S0.36).
"""

import logging
from collections.abc import Callable

from nyala.common import addresses
from nyala.common.errors import Forbidden, InvalidArgument, NyalaError
from nyala.common.ids import ServerUuid, TabletId
from nyala.common.metrics import Metrics
from nyala.common.options import Options
from nyala.env.env import Env
from nyala.env.rpc import Handlers
from nyala.master.ddl import tablet_report
from nyala.master.group.status import ResponseHeader
from nyala.master.leader import MasterLeadership, Term
from nyala.master.tservers import GONE, TServer, TServers
from nyala.security.identity import CALLER
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

log = logging.getLogger(__name__)


class HeartbeatService:
    """Handler of MasterHeartbeat. On the loop only.

    Args:
        env: the clock.
        servers: the tablet servers known to this master.
        leading: the role; None until this master has its sys catalog.
        header: returns the header of a response.
        options: options of this master.
        metrics: registry of the counter of orphaned replicas; None: a new one.
    """

    def __init__(
        self,
        env: Env,
        servers: TServers,
        leading: Callable[[], MasterLeadership | None],
        header: Callable[[], ResponseHeader],
        options: Options,
        metrics: Metrics | None = None,
    ) -> None:
        self._env = env
        self._servers = servers
        self._leading = leading
        self._header = header
        self._batch = options.report_batch_tablets
        metrics = metrics or Metrics()
        metrics.gauge(
            "master_over_quota_tables",
            "Tables over their quota of bytes, which take deletes only; of the leader master.",
            read=self._over_quota,
        )
        self._orphans = metrics.counter(
            "master_orphans_reported",
            "Replicas reported of which the catalog has no record; they are not changed.",
        )

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {methods.HEARTBEAT: self.heartbeat}

    async def heartbeat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        """Record a heartbeat, and the report in it if this master leads.

        Raises:
            InvalidArgument: not a tablet server's, or one of another cluster.
            Forbidden: it names another server than the certificate of the caller.
        """
        self._check(request.server)
        server = self._servers.record_heartbeat(request, self._env.clock.monotonic_us())
        leading = self._leading()
        term = None if leading is None else leading.current()
        if leading is None or term is None:
            return self._answer(leader=False, full=False, acknowledged=request.report_sequence)
        number = term.memory.term
        usable = request.full or server.full_in_term == number
        if usable and request.report_sequence > server.sequence and not server.busy:
            await self._take(leading, term, server, request)
        answer = self._answer(
            leader=leading.current() is term,
            full=server.full_in_term != number,
            acknowledged=server.sequence if server.full_in_term == number else 0,
        )
        cluster = term.catalog.cluster
        if answer.leader and cluster is not None:
            incarnation = cluster.catalog_incarnation
            lacks = term.catalog.servers.update(incarnation, request.server_list)
            if lacks is not None:
                answer.server_list.CopyFrom(lacks)
            answer.quotas.extend(term.quotas.exchange(request.sizes))
        return answer

    async def _take(
        self, leading: MasterLeadership, term: Term, server: TServer, request: pb.HeartbeatRequest
    ) -> None:
        server.busy = True
        try:
            news = tablet_report.operations(term.catalog, server.uuid, request.tablets, self._batch)
            for wanted in news:
                await leading.run(wanted, term)
        except NyalaError as err:
            # Not acknowledged, so the server sends it again, to this master or to the next leader.
            log.info("the report of %s was not recorded: %s", server.uuid, err)
            return
        finally:
            server.busy = False
        self._note_orphans(term, server, request)
        if term.memory.dropped is None:
            self._servers.record_report(server, request, term.memory.term)
            if request.full or request.tablets:
                tablets = [TabletId(t.tablet_id) for t in request.tablets]
                term.dispatcher.reported(server, tablets, full=request.full)
                term.background.trigger()

    def _over_quota(self) -> int:
        leading = self._leading()
        term = None if leading is None else leading.current()
        return 0 if term is None else len(term.quotas.over())

    def _note_orphans(self, term: Term, server: TServer, request: pb.HeartbeatRequest) -> None:
        """Log and count replicas without a catalog record; they are never deleted (S0.46)."""
        for report in request.tablets:
            known = report.state in GONE or term.catalog.tablet(TabletId(report.tablet_id))
            if not known:
                self._orphans.inc()
                log.warning(
                    "tablet server %s has a replica of %s, of which the catalog has no record: it is "
                    "not changed; check whether this server belongs to another cluster",
                    server.uuid, report.tablet_id,
                )  # fmt: skip

    def _check(self, server: pb.ServerInfoResponse) -> None:
        if server.role != "tserver" or not server.uuid:
            raise InvalidArgument(
                f"a heartbeat must name role tserver and a uuid, and this one names role {server.role!r} and "
                f"uuid {server.uuid!r}; only tablet servers report to masters"
            )
        caller = CALLER.get()
        if caller is not None and caller.principal.server_uuid not in (None, server.uuid):
            raise Forbidden(
                f"a heartbeat of server {server.uuid[:80]} arrived with the certificate of "
                f"{caller.principal}; a server reports for itself only"
            )
        addresses.parse(server.address)
        addresses.parse(server.peer_address)
        ours = self._header().cluster_id
        if ours and server.cluster_id and server.cluster_id != ours:
            raise InvalidArgument(
                f"tablet server {ServerUuid(server.uuid)} belongs to cluster {server.cluster_id}, and "
                f"this master to {ours}; start it with the masters of its own cluster"
            )

    def _answer(self, *, leader: bool, full: bool, acknowledged: int) -> pb.HeartbeatResponse:
        header = self._header()
        return pb.HeartbeatResponse(
            leader=leader,
            needs_full_report=full,
            acknowledged_sequence=acknowledged,
            cluster_id=header.cluster_id,
            catalog_incarnation=header.catalog_incarnation,
            term=header.term,
            master_uuid=header.master_uuid,
            master_addresses=header.master_addresses,
            wall_us=self._env.clock.wall_us(),
        )
