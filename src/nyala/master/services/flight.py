"""GetFlightInfo, ListFlights, GetSchema: Arrow Flight clients find a table here, and read it at its tablets.

Each endpoint is one tablet: the address of its leader, and a ticket (a scan token) that is complete for
DoGet. All tickets of one answer read one snapshot.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

from nyala.common.errors import InvalidArgument, NyalaError, Unavailable
from nyala.env.rpc import Handlers
from nyala.machines import registry
from nyala.master.catalog import queries
from nyala.master.catalog.records.tables import CatalogTable
from nyala.master.ddl import kinds
from nyala.master.services.tables import MasterContext
from nyala.wire import convert, flight, methods
from nyala.wire.proto import flight_pb2
from nyala.wire.proto import nyala_pb2 as pb

UNKNOWN_COUNT = -1


class FlightInfoService:
    """The look-up part of Arrow Flight's service. On the loop only.

    Args:
        context: context of this master.
    """

    def __init__(self, context: MasterContext) -> None:
        self._context = context
        self._timeout_ms = 2 * context.options.server_heartbeat_ms

    def handlers(self) -> Handlers:
        """Return the methods that this service answers."""
        return {
            methods.GET_FLIGHT_INFO: self.get_flight_info,
            methods.LIST_FLIGHTS: self.list_flights,
            methods.GET_SCHEMA: self.get_schema,
        }

    async def get_flight_info(self, request: flight_pb2.FlightDescriptor) -> flight_pb2.FlightInfo:
        """Return one endpoint per tablet, all at one snapshot of everything acknowledged before the call.

        Raises:
            NotFound, InvalidArgument: no such table, or no path of one name; or it is a journal.
            Unavailable: some tablet has no leader yet.
        """
        name = _table_name(request)
        catalog = (await self._context.confirmed()).catalog
        table = catalog.require(name)
        kinds.check_kind(table, registry.TABLE.number)
        servers = self._context.servers
        ending = [t for t in catalog.dropped_of(table.id) if not t.record.dropped_at]
        wanted = (*catalog.current_of(table.id), *ending)
        tablets = [queries.location(t, servers) for t in wanted]
        for tablet in tablets:
            if not tablet.replicas[0].leader:
                raise Unavailable(f"tablet {tablet.id} of {name!r} has no leader yet; retry")
        at = await self._now_at([t.replicas[0].address for t in tablets])
        info = _info(table)
        for tablet in tablets:
            info.endpoint.append(self._endpoint(table, tablet, at))
        return info

    async def list_flights(
        self, request: flight_pb2.Criteria
    ) -> AsyncIterator[flight_pb2.FlightInfo]:
        """Stream every table with its schema, and no journals; the endpoints come from GetFlightInfo."""
        for table in (await self._context.confirmed()).catalog.tables():
            if table.kind is registry.TABLE:
                yield _info(table)

    async def get_schema(self, request: flight_pb2.FlightDescriptor) -> flight_pb2.SchemaResult:
        """Return the Arrow schema of a table."""
        table = (await self._context.confirmed()).catalog.require(_table_name(request))
        kinds.check_kind(table, registry.TABLE.number)
        return flight_pb2.SchemaResult(schema=_schema(table))

    async def _now_at(self, addresses: Sequence[str]) -> int:
        """Return a time above every write that these servers have acknowledged."""
        rpc = self._context.env.rpc
        try:
            infos: list[pb.ServerInfoResponse] = await asyncio.gather(
                *(
                    rpc.call(
                        address,
                        methods.SERVER_INFO,
                        pb.ServerInfoRequest(),
                        timeout_ms=self._timeout_ms,
                    )
                    for address in dict.fromkeys(addresses)
                )
            )
        except NyalaError as err:
            raise Unavailable(f"a tablet's leader does not answer ({err}); retry") from err
        return max(info.hybrid_time for info in infos)

    def _endpoint(
        self, table: CatalogTable, tablet: pb.TabletLocation, at: int
    ) -> flight_pb2.FlightEndpoint:
        replicas = [r.address for r in tablet.replicas]
        token = pb.ScanToken(
            table_id=table.id,
            tablet_id=tablet.id,
            table_name=table.name,
            schema_version=table.version,
            ranges_version=table.spec.ranges_version,
            all_columns=True,
            mode=pb.SNAPSHOT,
            at=at,
            propagated_time=at,
            replicas=replicas,
            masters=[m.address for m in self._context.status().consensus.members],
        )
        location = flight_pb2.Location(uri=f"grpc://{replicas[0]}")
        ticket = flight_pb2.Ticket(ticket=token.SerializeToString())
        return flight_pb2.FlightEndpoint(ticket=ticket, location=[location])


def _table_name(request: flight_pb2.FlightDescriptor) -> str:
    if request.type != flight_pb2.FlightDescriptor.PATH or len(request.path) != 1:
        raise InvalidArgument(
            "name a table by a path of one element: FlightDescriptor.for_path(name)"
        )
    return request.path[0]


def _schema(table: CatalogTable) -> bytes:
    return flight.schema_message(convert.schema_from_proto(table.spec.schema).arrow)


def _info(table: CatalogTable) -> flight_pb2.FlightInfo:
    descriptor = flight_pb2.FlightDescriptor(
        type=flight_pb2.FlightDescriptor.PATH, path=[table.name]
    )
    return flight_pb2.FlightInfo(
        schema=_schema(table),
        flight_descriptor=descriptor,
        total_records=UNKNOWN_COUNT,
        total_bytes=UNKNOWN_COUNT,
    )
