"""Changes of the server list: alive, in maintenance, decommissioned. Operations; pure.

The state of a server is one row of the catalog, with the version of the list that the change made, so no
state changes without a version (S3.6). The list is distributed by wire/server_list.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nyala.common.errors import InvalidArgument, NotFound
from nyala.common.ids import ServerUuid, TableId
from nyala.common.texts.counted import counted
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.tservers import TServers
from nyala.wire.proto import nyala_pb2 as pb

SERVERS_LOCK = TableId("servers")
"""Lock of the server list, which serialises its changes."""


@dataclass(frozen=True, slots=True)
class ServerLiveness:
    """Liveness of servers as one master knows it.

    Attributes:
        alive: registrations of the servers that reported recently.
        complete: the master has waited long enough to count silent servers as dead.
    """

    alive: Mapping[ServerUuid, pb.ServerInfoResponse]
    complete: bool


def server_liveness(servers: TServers, now_us: int, since_us: int) -> ServerLiveness:
    """Return the liveness of servers for a master that was elected at `since_us`.

    Args:
        servers: the tablet servers known to this master.
        now_us: monotonic time, in microseconds.
        since_us: monotonic time at which this master was elected.
    """
    alive = {s.uuid: s.registration for s in servers.alive(now_us)}
    return ServerLiveness(alive, now_us - since_us >= servers.unresponsive_us)


def due(catalog: Catalog, seen: ServerLiveness) -> list[CatalogOperation]:
    """Return the operation that updates the list to the observed liveness; none if nothing changed."""
    if not _changes(catalog, seen):
        return []
    return [
        CatalogOperation(
            what="record live servers",
            scope=lambda _: Scope(tables=(SERVERS_LOCK,)),
            plan=lambda now: _plan(now, _changes(now, seen)),
        )
    ]


def mark(
    uuid: str, *, maintenance: bool | None = None, decommission: bool | None = None
) -> CatalogOperation:
    """Return the operation that sets or clears the states of a server; None leaves a state unchanged.

    It raises NotFound of an unknown server, and InvalidArgument when too few would be left.

    Args:
        uuid: uuid of the tablet server.
        maintenance: the new mark; None: unchanged.
        decommission: the new mark; None: unchanged.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        listed = catalog.servers.get(ServerUuid(uuid))
        if listed is None:
            raise NotFound(f"no tablet server {uuid!r} is in the list: `nyala tserver list`")
        changed = _copy(listed)
        if maintenance is not None:
            changed.maintenance = maintenance
        if decommission is not None:
            changed.decommission = decommission
        if decommission and not listed.decommission:
            _check_remaining(catalog, ServerUuid(uuid))
        return _plan(catalog, [] if changed == listed else [changed])

    words = "decommission" if decommission is not None else "maintenance"
    taken_back = maintenance is False or decommission is False
    what = f"{'end' if taken_back else 'begin'} {words}"
    return CatalogOperation(what, lambda _: Scope(tables=(SERVERS_LOCK,)), plan)


def unregister(uuid: str) -> CatalogOperation:
    """Return the operation that unregisters a server: users do not see it until it is alive again.

    Its entry stays in the list: copies of the list follow its versions, and no other server can join under
    its uuid. It raises NotFound of an unknown server, and InvalidArgument of one that is alive or has
    replicas.

    Args:
        uuid: uuid of the tablet server.
    """

    def plan(catalog: Catalog) -> CatalogPlan:
        listed = catalog.servers.get(ServerUuid(uuid))
        if listed is None:
            raise NotFound(f"no tablet server {uuid!r} is in the list: `nyala tserver list`")
        if listed.alive:
            raise InvalidArgument(
                f"tablet server {uuid} is alive; decommission it (nyala tserver decommission), stop its "
                "process when it has no replicas, and unregister it when it is listed as DEAD"
            )
        held = sum(not t.gone and listed.uuid in t.members for t in catalog.tablets())
        if held:
            raise InvalidArgument(
                f"tablet server {uuid} is a member of {counted(held, 'tablet')}, tables that can be recalled "
                "included; only one without replicas is unregistered: start it and decommission it (nyala "
                "tserver decommission), or wait until the masters have replaced its replicas (nyala cluster "
                "ksck)"
            )
        changed = _copy(listed)
        changed.maintenance = changed.decommission = False
        changed.unregistered = True
        return _plan(catalog, [] if changed == listed else [changed])

    return CatalogOperation("unregister", lambda _: Scope(tables=(SERVERS_LOCK,)), plan)


def _check_remaining(catalog: Catalog, uuid: ServerUuid) -> None:
    """Check that a server's replicas can be placed on other servers.

    Raises:
        InvalidArgument: too few servers would remain.
    """
    held = [t for t in catalog.tablets() if t.live and uuid in t.members]
    tables = [catalog.table(t.table_id) for t in held]
    required = max((t.spec.replicas for t in tables if t is not None), default=0)
    remaining = [
        s for s in catalog.servers.all() if s.alive and not takes_no_replicas(s) and s.uuid != uuid
    ]
    if len(remaining) < required:
        raise InvalidArgument(
            f"{len(remaining)} live servers would be left, and tables with replicas on {uuid} have "
            f"{required} replicas; start more servers, or lower their number of replicas"
        )


def takes_no_replicas(server: pb.ListedServer) -> bool:
    """Return whether a server gets no new replicas."""
    return server.maintenance or server.decommission


def _plan(catalog: Catalog, changed: Iterable[pb.ListedServer]) -> CatalogPlan:
    """Return the plan of changes, each with the next version."""
    records = tuple(changed)
    for n, record in enumerate(records, start=1):
        record.version = catalog.servers.version + n
    return CatalogPlan(servers=records)


def _changes(catalog: Catalog, seen: ServerLiveness) -> list[pb.ListedServer]:
    changed = []
    for uuid, info in sorted(seen.alive.items()):
        listed = catalog.servers.get(uuid)
        now = pb.ListedServer(uuid=uuid) if listed is None else _copy(listed)
        now.alive, now.unregistered = True, False
        now.address, now.peer_address = info.address, info.peer_address
        now.web_address, now.location = info.web_address, info.location
        if now != listed:
            changed.append(now)
    for listed in catalog.servers.all():
        if seen.complete and listed.alive and listed.uuid not in seen.alive:
            dead = _copy(listed)
            dead.alive = False
            changed.append(dead)
    return changed


def _copy(server: pb.ListedServer) -> pb.ListedServer:
    copy = pb.ListedServer()
    copy.CopyFrom(server)
    return copy
