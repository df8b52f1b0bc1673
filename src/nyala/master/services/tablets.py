"""Administration of single tablets."""

from nyala.common.errors import Unavailable
from nyala.common.ids import ServerUuid, TabletId
from nyala.env.rpc import Handlers
from nyala.master.catalog.catalog import Catalog
from nyala.master.ddl import create_table, replace_tablet
from nyala.master.leader import Term
from nyala.master.services.tables import MasterContext
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb

BROKEN = ("FAILED", "TOMBSTONED")


class TabletsService:
    """Handlers of `MasterService` about tablets. On the loop only.

    Args:
        context: context of this master.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {methods.REPLACE_TABLET: self.replace_tablet}

    async def replace_tablet(self, request: pb.ReplaceTabletRequest) -> pb.ReplaceTabletResponse:
        """Replace a lost tablet by an empty one with its key range; durable on return.

        Idempotent. Replicas that are reported later are deleted.

        Raises:
            NotFound: no such tablet, or it was deleted.
            InvalidArgument: live servers have working replicas and `force` is not set, or too few are live.
            Unavailable: `force` is not set, and a live server has not sent a full report to this leader yet.
            NotLeader, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        term = await self._context.confirmed()
        if not request.force:
            self._check_reports_complete(term)
        shown = self._shown(TabletId(request.tablet_id))
        answer = described(term.catalog, request.tablet_id, shown)
        if not request.dry_run:
            inputs = create_table.plan_inputs(
                self._context.env, term.catalog, self._context.servers
            )
            time = self._context.servers.time(self._context.env.clock.wall_us())
            wanted = replace_tablet.unsafe(request, inputs, shown, time)
            await self._context.require_leading().run(wanted, term)
        found = term.catalog.successor(TabletId(request.tablet_id))
        assert found is not None, request.tablet_id
        answer.tablet_id = found.id
        return answer

    def _check_reports_complete(self, term: Term) -> None:
        """Check that all live servers have sent a full report: a new leader knows of no replica yet."""
        servers, now_us = self._context.servers, self._context.env.clock.monotonic_us()
        alive = servers.alive(now_us)
        reported = [s.uuid for s in servers.known_in(term.memory.term, alive)]
        listed = [ServerUuid(s.uuid) for s in term.catalog.servers.all() if s.alive]
        waiting = [
            u for u in dict.fromkeys((*listed, *(s.uuid for s in alive))) if u not in reported
        ]
        if waiting:
            raise Unavailable(
                f"{', '.join(waiting)} may have replicas, and has not reported to the leader master, which "
                "was just elected; retry when it has reported, or is listed as dead"
            )

    def _shown(self, tablet: TabletId) -> list[ServerUuid]:
        live = self._context.servers.alive(self._context.env.clock.monotonic_us())
        return [s.uuid for s in live if s.replicas.get(tablet, BROKEN[0]) not in BROKEN]


def described(
    catalog: Catalog, tablet_id: str, shown: list[ServerUuid]
) -> pb.ReplaceTabletResponse:
    """Return the state of a tablet and the servers with working replicas.

    Args:
        catalog: the leader's catalog.
        tablet_id: id of the tablet.
        shown: servers whose replica works.

    Raises:
        NotFound: no such tablet, or it was deleted.
    """
    tablet, table = replace_tablet.known(catalog, tablet_id)
    return pb.ReplaceTabletResponse(
        table_name=table.name,
        state=tablet.state.name,
        members=tablet.consensus.members,
        shown_by=shown,
    )
