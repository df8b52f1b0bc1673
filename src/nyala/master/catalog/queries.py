"""Answers to look-ups, from the catalog to messages. Pure."""

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.machines import registry
from nyala.machines.kind import MachineKind
from nyala.machines.tables import quota_of
from nyala.master.catalog import past_columns
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet, TableState, TabletState
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb


def list_tables(catalog: Catalog, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
    """Return the tables of a kind whose name contains a text, or those dropped ones that can be recalled."""
    every = catalog.recallable() if request.dropped else catalog.tables()
    tables = [
        t
        for t in every
        if request.name_contains in t.name and (request.all_kinds or t.spec.kind == request.kind)
    ]
    return pb.ListTablesResponse(
        tables=[
            pb.TableSummary(
                id=t.id,
                name=t.name,
                state=t.state.name,
                tablets=len(catalog.current_of(t.id)),
                replicas=t.spec.replicas,
                purge_after_us=t.record.purge_after_us,
                kind=t.spec.kind,
                quota_bytes=quota_of(t.spec.options),
            )
            for t in tables
        ]
    )


def search(catalog: Catalog, name: str, table_id: str) -> CatalogTable | None:
    """Return a table by name, or else by id, if there is one, live or not.

    Args:
        catalog: the leader's catalog.
        name: name of the table; empty: look it up by id.
        table_id: id of the table.
    """
    return catalog.named(name) if name else catalog.table(TableId(table_id))


def find(
    catalog: Catalog, name: str, table_id: str, kind: MachineKind = registry.TABLE
) -> CatalogTable:
    """Return a table, of any kind, by name or id.

    Args:
        catalog: the leader's catalog.
        name: name of the table; empty: look it up by id.
        table_id: id of the table.
        kind: that the caller expects; errors say so.

    Raises:
        InvalidArgument: neither or both are given.
        NotFound: no such table, or it was dropped.
    """
    if bool(name) == bool(table_id):
        raise InvalidArgument(f"give the name or the id of a {kind.name}, one of the two")
    if name:
        return catalog.require(name, kind)
    table = catalog.table(TableId(table_id))
    if table is None:
        raise NotFound(f"no {kind.name} has the id {table_id!r}")
    if not table.live:
        what = table.kind.name
        again = f"; it can be recalled: nyala {what} recall" if table.recallable else ""
        raise NotFound(f"the {what} {table.name!r} (id {table_id}) was dropped{again}")
    return table


def describe(
    catalog: Catalog, servers: TServers, table: CatalogTable, at: int = 0
) -> pb.DescribeTableResponse:
    """Return the definition of a table, and how many of its tablets run and have applied it.

    Args:
        catalog: the leader's catalog.
        servers: the tablet servers known to this master.
        table: a table of that catalog.
        at: hybrid time of which the schema is returned too; 0: none is.

    Raises:
        HistoryGone: the schema at that time is not kept any more.
    """
    tablets = catalog.current_of(table.id)
    running = sum(t.state is TabletState.RUNNING for t in tablets)
    altered = len(tablets)
    if table.state is TableState.ALTERING:
        version = table.version
        altered = sum(servers.schema_version(t.id) >= version for t in tablets)
    answer = pb.DescribeTableResponse(
        id=table.id,
        state=table.state.name,
        table=table.spec,
        ready=running == len(tablets),
        tablets=len(tablets),
        tablets_running=running,
        tablets_altered=altered,
        columns_from=past_columns.last_time(table.record),
        quota_bytes=quota_of(table.spec.options),
    )
    if at:
        schema, answer.schema_until = past_columns.schema_at(table.record, at)
        answer.schema_at.CopyFrom(schema)
    return answer


def locations(
    catalog: Catalog, servers: TServers, request: pb.TabletLocationsRequest, ttl_ms: int
) -> pb.TabletLocationsResponse:
    """Return the locations of some or all tablets of a table; of a replaced one, those of its successor.

    Args:
        catalog: the leader's catalog.
        servers: the tablet servers known to this master.
        request: request of the client.
        ttl_ms: time for which clients may cache the answer.

    Raises:
        NotFound: no such table, or a tablet that is not one of its live ones.
        InvalidArgument: no table is named.
    """
    table = find(catalog, "", request.table_id)
    tablets, dropped = catalog.current_of(table.id), catalog.dropped_of(table.id)
    if request.tablet_ids:
        found = [catalog.successor(TabletId(wanted)) for wanted in request.tablet_ids]
        for wanted, tablet in zip(request.tablet_ids, found, strict=True):
            if tablet is None or not tablet.live or tablet.table_id != table.id:
                raise NotFound(
                    f"the {table.kind.name} {table.name!r} has no tablet {wanted!r} (any more)"
                )
        tablets, dropped = [t for t in found if t is not None], []
    return pb.TabletLocationsResponse(
        tablets=[location(t, servers) for t in tablets],
        schema_version=table.version,
        ttl_ms=ttl_ms,
        partition=table.spec.partition,
        ranges_version=table.spec.ranges_version,
        dropped=[location(t, servers) for t in dropped],
        history_from=table.record.history_from,
    )


def location(tablet: CatalogTablet, servers: TServers) -> pb.TabletLocation:
    """Return the location of one tablet, its leader first."""
    replicas = []
    for member in tablet.consensus.members:
        server = servers.get(ServerUuid(member.uuid))
        address = member.address if server is None else server.registration.address
        leads = member.uuid == tablet.consensus.leader
        replicas.append(
            pb.ReplicaLocation(uuid=member.uuid, address=address, leader=leads, voter=member.voter)
        )
    return pb.TabletLocation(
        id=tablet.id,
        partition=tablet.record.partition,
        replicas=sorted(replicas, key=lambda r: not r.leader),
        state=tablet.state.name,
        term=tablet.consensus.term,
        dropped_at=tablet.record.dropped_at,
    )


def tablet_servers(catalog: Catalog, servers: TServers, now_us: int) -> list[pb.ServerEntry]:
    """Return the tablet servers that are listed or have reported since this master started, by id.

    Without those that are unregistered.

    Args:
        catalog: the leader's catalog.
        servers: the tablet servers known to this master.
        now_us: monotonic time, in microseconds.
    """
    counts = catalog.replica_counts()
    listed = {ServerUuid(s.uuid): s for s in catalog.servers.all()}
    registered = {s.uuid: s for s in servers.all()}
    entries = []
    for uuid in sorted({**listed, **registered}):
        known = listed.get(uuid) or pb.ListedServer()
        if known.unregistered:
            continue
        entry = pb.ServerEntry(
            uuid=uuid,
            role="tserver",
            address=known.address,
            peer_address=known.peer_address,
            web_address=known.web_address,
            location=known.location,
            maintenance=known.maintenance,
            decommission=known.decommission,
            list_version=known.version,
            replicas=counts.get(uuid, 0),
        )
        if (server := registered.get(uuid)) is not None:
            info = server.registration
            entry.address, entry.peer_address = info.address, info.peer_address
            entry.web_address, entry.location = info.web_address, info.location
            entry.version = info.version
            entry.alive = servers.is_alive(server, now_us)
            entry.last_heartbeat_ms = (now_us - server.last_heartbeat_us) // 1000
            entry.known_version = server.list_version
        entries.append(entry)
    return entries
