"""What a leader holds in memory, read only: for the debug call, pages and tests. Changes nothing.

Every map is here, so that whoever suspects one can look (S0.10-S0.17).
"""

import json
from collections.abc import Mapping
from typing import Any

from nyala.common.ids import ServerUuid, TabletId
from nyala.master import long_operations
from nyala.master.catalog import Catalog
from nyala.master.leading import Term
from nyala.master.operation import InFlight
from nyala.master.plans import Scope
from nyala.master.records import Table, Tablet
from nyala.master.tservers import TServers
from nyala.web.pages import Listing
from nyala.wire.proto import nyala_pb2 as pb

RANKS = ("name", "table", "tablet")


def answer(term: Term, servers: TServers, now_us: int) -> pb.InspectMasterResponse:
    """Return the answer to InspectMaster."""
    flights = term.memory.in_flight.items()
    return pb.InspectMasterResponse(
        term=term.memory.term,
        operations=[_operation(number, o, now_us) for number, o in flights],
        maps=json.dumps(maps(term, servers, now_us)),
        long_operations=long_operations.under_way(term.catalog),
    )


def maps(term: Term, servers: TServers, now_us: int) -> dict[str, Any]:
    """Return every map of a leader's memory, as plain values."""
    return {
        **_catalog_maps(term.catalog),
        "locks": [_lock(key) for key in term.memory.locks.taken()],
        "orders": term.dispatcher.pending(),
        "tservers": {s.uuid: _tserver(s.uuid, servers, now_us) for s in servers.all()},
        "server_list": {
            "version": term.catalog.servers.version,
            "servers": {s.uuid: _listed(s) for s in term.catalog.servers.all()},
        },
    }


def catalog_page(term: Term) -> Listing:
    """Return the page of all tables, gone ones included."""
    catalog = term.catalog
    rows = [
        (t.name, t.state.name if t.live or not t.recallable else "DROPPED, can be recalled",
         str(t.spec.schema.version), str(len(catalog.tablets_of(t.id))), str(t.spec.replicas), t.id)
        for t in catalog.every_table()
    ]  # fmt: skip
    return Listing("tables", ("table", "state", "version", "tablets", "replicas", "id"), rows)


def tservers_page(servers: TServers, now_us: int) -> Listing:
    """Return the page of the tablet servers that report to this master, leader or not (S0.28)."""
    rows = []
    for server in servers.all():
        shown = _tserver(server.uuid, servers, now_us)
        rows.append(tuple(str(shown[key]) for key in TSERVER_COLUMNS))
    return Listing("tablet servers", TSERVER_COLUMNS, rows)


def operations_page(term: Term, now_us: int) -> Listing:
    """Return the page of the operations in flight."""
    rows = []
    for number, flight in term.memory.in_flight.items():
        o = _operation(number, flight, now_us)
        committed = "yes" if o.committed else "no"
        rows.append((str(number), o.what, o.step, committed, " ".join(o.locks), str(o.age_ms)))
    return Listing("operations", ("number", "operation", "step", "committed", "locks", "ms"), rows)


TSERVER_COLUMNS = ("uuid", "address", "alive", "heard_ms_ago", "report", "full_in_term", "replicas")


def _catalog_maps(catalog: Catalog) -> dict[str, Any]:
    return {
        "tables": {t.id: _table(t) for t in catalog.every_table()},
        "names": {t.name: t.id for t in catalog.tables()},
        "altering": [t.id for t in catalog.altering()],
        "creating": [t.id for t in catalog.creating()],
        "recallable": [t.id for t in catalog.recallable()],
        "tablets": {t.id: _tablet(t) for t in catalog.tablets()},
        "tablets_of": {
            t.id: [tablet.id for tablet in catalog.ever_of(t.id)] for t in catalog.every_table()
        },
        "executed": catalog.executed.listed(),
    }


def _table(table: Table) -> dict[str, Any]:
    record = table.record
    return {
        "name": table.name,
        "state": table.state.name,
        "schema_version": table.spec.schema.version,
        "fully_applied_version": (
            record.fully_applied_schema.version if record.HasField("fully_applied_schema") else None
        ),
        "earlier_versions": [e.schema.version for e in record.earlier],
        "purge_after_us": record.purge_after_us,
    }


def _tablet(tablet: Tablet) -> dict[str, Any]:
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


def _tserver(uuid: ServerUuid, servers: TServers, now_us: int) -> Mapping[str, Any]:
    server = servers.get(uuid)
    assert server is not None, uuid
    versions: Mapping[TabletId, int] = server.versions
    return {
        "uuid": uuid,
        "address": server.registration.address,
        "alive": servers.is_alive(server, now_us),
        "heard_ms_ago": (now_us - server.heard_us) // 1000,
        "report": server.sequence,
        "full_in_term": server.full_in_term,
        "replicas": dict(server.replicas),
        "schema_versions": dict(versions),
    }


def _listed(server: pb.ListedServer) -> dict[str, Any]:
    return {
        "version": server.version,
        "alive": server.alive,
        "maintenance": server.maintenance,
        "decommission": server.decommission,
        "address": server.address,
    }


def _operation(number: int, shown: InFlight, now_us: int) -> pb.OperationInFlight:
    scope: Scope = shown.scope
    return pb.OperationInFlight(
        number=number,
        what=shown.what,
        subject=" ".join(scope.tables),
        step=shown.step.value,
        committed=shown.step.committed,
        locks=[_lock(key) for key in scope.ordered()],
        age_ms=(now_us - shown.since_us) // 1000,
    )


def _lock(key: tuple[int, str]) -> str:
    rank, name = key
    return f"{RANKS[rank]}:{name}"
