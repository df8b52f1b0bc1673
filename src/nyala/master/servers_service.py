"""What people ask the leader master about tablet servers: maintenance, and who inherits from whom."""

from nyala.common.errors import NotFound
from nyala.common.ids import ServerUuid, TableId
from nyala.env.rpc import Handlers
from nyala.master.catalog import Catalog
from nyala.master.operation import Operation
from nyala.master.plans import Plan, Scope
from nyala.master.service import Parts
from nyala.wire import methods
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb

CLUSTER_LOCK = TableId("cluster")
"""Changes of the cluster's record come one after the other."""


class ServersService:
    """Handlers of `MasterService` about tablet servers. On the loop only.

    Args:
        parts: of this master.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {methods.SET_MAINTENANCE: self.set_maintenance, methods.WILLS: self.wills}

    async def set_maintenance(self, request: pb.SetMaintenanceRequest) -> pb.SetMaintenanceResponse:
        """Let a server enter maintenance, or leave it; durable on return. The same again changes nothing.

        Raises:
            NotFound: no tablet server with this id has reported, or has replicas.
            NotLeader, Unavailable, Throttled, TimedOut, OutcomeUnknown: ask again.
        """
        term = await self._parts.confirmed()
        self._known(term.catalog, request.uuid)
        wanted = Operation(
            what="enter maintenance" if request.on else "exit maintenance",
            scope=lambda _: Scope(tables=(CLUSTER_LOCK,)),
            plan=lambda catalog: maintain(catalog, request.uuid, on=request.on),
        )
        await self._parts.require_leading().run(wanted, term)
        return pb.SetMaintenanceResponse()

    async def wills(self, request: pb.WillsRequest) -> pb.WillsResponse:
        """Return who would take the replicas of some servers, or of all.

        Raises:
            NotFound: no such tablet server.
        """
        term = await self._parts.confirmed()
        catalog = term.catalog
        asked = list(request.uuids) or [s.uuid for s in self._parts.servers.all()]
        answer = pb.WillsResponse()
        for uuid in asked:
            self._known(catalog, uuid)
            heirs = term.dispatcher.repairs.wills.of(ServerUuid(uuid))
            will = answer.wills.add(uuid=uuid)
            for tablet in catalog.tablets():
                if tablet.live and uuid in tablet.members:
                    table = catalog.table(tablet.table_id)
                    will.bequests.add(
                        tablet_id=tablet.id,
                        table_name="" if table is None else table.name,
                        heir=heirs.get(tablet.id, ""),
                    )
        return answer

    def _known(self, catalog: Catalog, uuid: str) -> None:
        kept = () if catalog.cluster is None else catalog.cluster.maintenance
        counted = catalog.replica_counts()
        if self._parts.servers.get(ServerUuid(uuid)) is None and uuid not in (*kept, *counted):
            raise NotFound(
                f"no tablet server {uuid!r} has reported, and no tablet names it; `nyala tserver list` "
                "shows those that there are"
            )


def maintain(catalog: Catalog, uuid: str, *, on: bool) -> Plan:
    """Return the cluster's record with a server in maintenance, or out of it; nothing if it is so."""
    assert catalog.cluster is not None, "a ready catalog has its cluster"
    if (uuid in catalog.cluster.maintenance) == on:
        return Plan()
    record = cat.ClusterRecord()
    record.CopyFrom(catalog.cluster)
    kept = [u for u in record.maintenance if u != uuid]
    del record.maintenance[:]
    record.maintenance.extend(sorted([*kept, uuid]) if on else kept)
    return Plan(cluster=record)
