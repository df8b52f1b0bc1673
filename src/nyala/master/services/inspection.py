"""The leader's state in memory, read only: for the debug call, web pages and tests.

Every map is included (S0.10-S0.17), a range of each at a time: the answer is made on the loop, between two
heartbeats.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.machines.tables import quota_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet
from nyala.master.leader import Term
from nyala.master.services.operations import listing
from nyala.master.services.operations.waits import LeaderView
from nyala.master.tservers import TServer, TServers
from nyala.web.pages import Listing
from nyala.wire.proto import nyala_pb2 as pb

DEFAULT_ENTRIES, MAX_ENTRIES = 1000, 2000
"""Number of entries of a map, and of rows of a page: default, and maximum."""

Entry = TypeVar("Entry")


class MapPage:
    """The range of each map that is returned.

    Args:
        offset: number of entries to skip.
        limit: number of entries to return, at most `MAX_ENTRIES`; 0: `DEFAULT_ENTRIES`.

    Attributes:
        more: number of entries after this range, of each map that has any.
    """

    def __init__(self, offset: int = 0, limit: int = 0) -> None:
        self._limit = min(limit or DEFAULT_ENTRIES, MAX_ENTRIES)
        self._offset, self._end = offset, offset + self._limit
        self.more: dict[str, int] = {}

    def of(self, what: str, entries: Iterable[Entry], size: int) -> Iterable[Entry]:
        """Return the entries of a map in the range, and count those after it.

        Args:
            what: name of the map.
            entries: entries of the map, in order.
            size: how many entries there are.
        """
        if size > self._end:
            self.more[what] = size - self._end
        return islice(entries, self._offset, self._end)

    def within(self, what: str, entries: Sequence[Entry], lists: int) -> Sequence[Entry]:
        """Return the first entries of one of several lists that share the limit of one map.

        Args:
            what: name of the map.
            entries: entries of one list.
            lists: how many lists the map has.
        """
        shown = entries[: max(1, self._limit // max(1, lists))]
        if hidden := len(entries) - len(shown):
            self.more[what] = self.more.get(what, 0) + hidden
        return shown


def answer(
    term: Term, servers: TServers, now_us: int, request: pb.InspectMasterRequest
) -> pb.InspectMasterResponse:
    """Return the answer to InspectMaster.

    Args:
        term: the leader's state.
        servers: the tablet servers known to this master.
        now_us: monotonic time, in microseconds.
        request: which entries, or which operation, are wanted.

    Raises:
        NotFound: the operation that is asked for is not under way.
    """
    part = MapPage(request.offset, request.limit)
    answer = pb.InspectMasterResponse(
        term=term.memory.term,
        maps=json.dumps(maps(term, servers, now_us, part)) if request.maps else "",
    )
    if not request.maps:
        listing.fill(answer, LeaderView(term, servers, now_us), request.operation)
    return answer


def maps(term: Term, servers: TServers, now_us: int, part: MapPage) -> dict[str, Any]:
    """Return every map of a leader's memory, a part of each, as plain values.

    Args:
        term: the leader's state.
        servers: the tablet servers known to this master.
        now_us: monotonic time, in microseconds.
        part: the range of entries that is returned.
    """
    every, listed, taken = servers.all(), term.catalog.servers.all(), term.memory.locks.taken()
    return {
        **_catalog_maps(term.catalog, part),
        "locks": [listing.lock_text(key) for key in part.of("locks", taken, len(taken))],
        "orders": term.dispatcher.pending(),
        "tservers": {
            s.uuid: _tserver(s.uuid, servers, now_us) | _replicas(s, part)
            for s in part.of("tservers", every, len(every))
        },
        "server_list": {
            "version": term.catalog.servers.version,
            "servers": {s.uuid: _listed(s) for s in part.of("server_list", listed, len(listed))},
        },
        "more": part.more,
    }


def catalog_page(term: Term) -> Listing:
    """Return the page of the first tables and journals, removed ones included."""
    catalog, part = term.catalog, MapPage()
    every = catalog.every_table()
    rows = [
        (t.name, t.kind.name, t.state.name if t.live or not t.recallable else "DROPPED, can be recalled",
         str(t.version), str(len(catalog.current_of(t.id))), str(t.spec.replicas), _quota(term, t), t.id)
        for t in part.of("tables", every, len(every))
    ]  # fmt: skip
    hidden = part.more.get("tables", 0)
    title = f"tables ({hidden} more: nyala table list)" if hidden else "tables"
    return Listing(title, _TABLE_COLUMNS, rows)


_TABLE_COLUMNS = (
    "name", "kind", "state", "version", "tablets", "replicas", "bytes of quota", "id",
)  # fmt: skip


def _quota(term: Term, table: CatalogTable) -> str:
    """Return size and quota of a table; empty: it has none."""
    limit = quota_of(table.spec.options)
    if not limit:
        return ""
    size = term.quotas.bytes_of(table)
    return f"{'?' if size is None else size} of {limit}"


def tablets_page(term: Term) -> Listing:
    """Return the page of the first tablets and their members, deleted ones included."""
    catalog, part = term.catalog, MapPage()
    rows = []
    for tablet in part.of("tablets", catalog.tablets(), catalog.size):
        shown = _tablet(tablet)
        table = catalog.table(tablet.table_id)
        name = table.name if table else tablet.table_id
        config = ".".join(str(n) for n in shown["config"])
        others = " ".join(sorted(u for u in tablet.members if u != shown["leader"]))
        rows.append((tablet.id, name, shown["state"], config, shown["leader"], others))
    hidden = part.more.get("tablets", 0)
    title = (
        f"tablets ({hidden} more: nyala ops --maps --offset {DEFAULT_ENTRIES})"
        if hidden
        else "tablets"
    )
    return Listing(
        title, ("tablet", "table", "state", "configuration", "leader", "other members"), rows
    )


def tservers_page(servers: TServers, now_us: int) -> Listing:
    """Return the page of the tablet servers that report to this master, leader or not (S0.28)."""
    rows = []
    for server in servers.all():
        shown = _tserver(server.uuid, servers, now_us)
        shown["alive"] = "yes" if shown["alive"] else "no"
        rows.append(tuple(str(shown[key]) for key in TSERVER_COLUMNS))
    return Listing("tablet servers", TSERVER_COLUMNS, rows)


TSERVER_COLUMNS = (
    "uuid", "address", "release", "alive", "heard_ms_ago", "report", "full_in_term", "replicas",
)  # fmt: skip


def _catalog_maps(catalog: Catalog, part: MapPage) -> dict[str, Any]:
    tables, names = catalog.every_table(), catalog.tables()
    indexes: dict[str, list[TableId] | list[TabletId]] = {
        "altering": [t.id for t in catalog.altering()],
        "creating": [t.id for t in catalog.creating()],
        "recallable": [t.id for t in catalog.recallable()],
    }
    shown: dict[str, Any] = {
        "tables": {t.id: _table(t) for t in part.of("tables", tables, len(tables))},
        "names": {t.name: t.id for t in part.of("names", names, len(names))},
        "tablets": {t.id: _tablet(t) for t in part.of("tablets", catalog.tablets(), catalog.size)},
        "executed": {
            what: {
                f"{client.hex()}/{n}": table
                for (client, n), table in part.of(f"executed {what}", done.items(), len(done))
            }
            for what, done in catalog.executed.listed().items()
        },
    }
    for what, ids in indexes.items():
        shown[what] = list(part.of(what, ids, len(ids)))
    of_table = {t: catalog.tablets_with_deleted(t) for t in shown["tables"]}
    shown["tablets_of"] = {
        table: [t.id for t in part.within("tablets_of", ever, len(of_table))]
        for table, ever in of_table.items()
    }
    return shown


def _replicas(server: TServer, part: MapPage) -> dict[str, Any]:
    known: dict[str, Mapping[TabletId, Any]] = {
        "replicas": server.replicas,
        "schema_versions": server.versions,
    }
    return {
        what: dict(part.of(f"{what} of {server.uuid}", found.items(), len(found)))
        for what, found in known.items()
    }


def _table(table: CatalogTable) -> dict[str, Any]:
    record = table.record
    return {
        "name": table.name,
        "state": table.state.name,
        "kind": table.kind.name,
        "schema_version": table.version,
        "fully_applied_version": (
            record.fully_applied_schema.version if record.HasField("fully_applied_schema") else None
        ),
        "earlier_versions": [e.schema.version for e in record.earlier],
        "purge_after_us": record.purge_after_us,
    }


def _tablet(tablet: CatalogTablet) -> dict[str, Any]:
    consensus = tablet.consensus
    return {
        "table": tablet.table_id,
        "state": tablet.state.name,
        "config": [consensus.config_term, consensus.config_index],
        "term": consensus.term,
        "leader": consensus.leader,
        "members": list(tablet.members),
        "reported_by": list(tablet.record.reported_by),
        "first_schema_version": tablet.record.first_schema_version,
        "replaced_by": tablet.record.replaced_by,
    }


def _tserver(uuid: ServerUuid, servers: TServers, now_us: int) -> dict[str, Any]:
    server = servers.get(uuid)
    assert server is not None, uuid
    return {
        "uuid": uuid,
        "address": server.registration.address,
        "release": server.registration.version,
        "alive": servers.is_alive(server, now_us),
        "heard_ms_ago": (now_us - server.last_heartbeat_us) // 1000,
        "report": server.sequence,
        "full_in_term": server.full_in_term,
        "replicas": len(server.replicas),
    }


def _listed(server: pb.ListedServer) -> dict[str, Any]:
    return {
        "version": server.version,
        "alive": server.alive,
        "maintenance": server.maintenance,
        "decommission": server.decommission,
        "unregistered": server.unregistered,
        "address": server.address,
    }
