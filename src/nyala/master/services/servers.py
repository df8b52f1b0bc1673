"""Administration of tablet servers: maintenance, decommission, standby plan, inspection."""

from nyala.common.errors import NotFound
from nyala.common.ids import ServerUuid
from nyala.env.rpc import Handlers
from nyala.master.catalog.catalog import Catalog
from nyala.master.ddl import server_states
from nyala.master.services import inspection
from nyala.master.services.tables import MasterContext
from nyala.wire import methods
from nyala.wire.proto import nyala_pb2 as pb


class ServersService:
    """Handlers of `MasterService` for operators. On the loop only.

    Args:
        context: context of this master.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.SET_MAINTENANCE: self.set_maintenance,
            methods.SET_DECOMMISSION: self.set_decommission,
            methods.UNREGISTER_SERVER: self.unregister_server,
            methods.STANDBY_PLANS: self.standby_plans,
            methods.INSPECT_MASTER: self.inspect_master,
        }

    async def inspect_master(self, request: pb.InspectMasterRequest) -> pb.InspectMasterResponse:
        """Return this leader's state in memory and its operations, without waiting."""
        term = self._context.require_leading().require()
        now_us = self._context.env.clock.monotonic_us()
        return inspection.answer(term, self._context.servers, now_us, request)

    async def set_maintenance(self, request: pb.SetMaintenanceRequest) -> pb.SetMaintenanceResponse:
        """Put a server in maintenance, or end it; durable on return. Idempotent.

        Raises:
            NotFound: no tablet server with this id is in the list.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        term = await self._context.confirmed()
        wanted = server_states.mark(request.uuid, maintenance=request.on)
        await self._context.require_leading().run(wanted, term)
        return pb.SetMaintenanceResponse()

    async def set_decommission(
        self, request: pb.SetDecommissionRequest
    ) -> pb.SetDecommissionResponse:
        """Decommission a server, or cancel that; durable on return. Replicas move in the background.

        Raises:
            NotFound: no tablet server with this id is in the list.
            InvalidArgument: too few servers would be left for its replicas.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        term = await self._context.confirmed()
        wanted = server_states.mark(request.uuid, decommission=request.on)
        await self._context.require_leading().run(wanted, term)
        left = term.catalog.replica_counts().get(ServerUuid(request.uuid), 0)
        return pb.SetDecommissionResponse(replicas=left)

    async def unregister_server(
        self, request: pb.UnregisterServerRequest
    ) -> pb.UnregisterServerResponse:
        """Unregister a server that is dead and has no replicas; durable on return. Idempotent.

        Raises:
            NotFound: no tablet server with this id is in the list.
            InvalidArgument: it is alive, or has replicas.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: retry.
        """
        term = await self._context.confirmed()
        await self._context.require_leading().run(server_states.unregister(request.uuid), term)
        self._context.servers.forget(
            ServerUuid(request.uuid), self._context.env.clock.monotonic_us()
        )
        return pb.UnregisterServerResponse()

    async def standby_plans(self, request: pb.StandbyPlansRequest) -> pb.StandbyPlansResponse:
        """Return the standby servers for the replicas of some servers, or of all.

        Raises:
            NotFound: no such tablet server.
        """
        term = await self._context.confirmed()
        catalog = term.catalog
        asked = list(request.uuids) or [s.uuid for s in self._context.servers.all()]
        answer = pb.StandbyPlansResponse()
        for uuid in asked:
            self._known(catalog, uuid)
            standbys = term.dispatcher.repairs.standby.of(ServerUuid(uuid))
            plan = answer.plans.add(uuid=uuid)
            for tablet in catalog.tablets():
                if tablet.live and uuid in tablet.members:
                    table = catalog.table(tablet.table_id)
                    plan.standbys.add(
                        tablet_id=tablet.id,
                        table_name="" if table is None else table.name,
                        standby=standbys.get(tablet.id, ""),
                    )
        return answer

    def _known(self, catalog: Catalog, uuid: str) -> None:
        known = self._context.servers.get(ServerUuid(uuid)) or catalog.servers.get(ServerUuid(uuid))
        if known is None and uuid not in catalog.replica_counts():
            raise NotFound(
                f"no tablet server {uuid!r} has reported, and no tablet names it; `nyala tserver list` "
                "shows those that there are"
            )
