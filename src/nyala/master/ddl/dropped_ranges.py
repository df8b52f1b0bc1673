"""Tablets of dropped ranges, which are kept for readers of their history, and their deletion. Pure.

Their rows ended when the range was dropped (`dropped_at`), so a read of any earlier time needs them, and a
read of a later one does not. When such times are older than the history that the table keeps, the tablets
are deleted, and the table's record says from which time on it can be read (`history_from`).
"""

from nyala.common.hybrid_time import to_micros
from nyala.master.catalog.actions import Action, DeleteTabletAction
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.plan import CatalogPlan, Scope
from nyala.master.catalog.records.tables import CatalogTablet, TabletState
from nyala.master.ddl.operation import CatalogOperation
from nyala.master.ddl.table_spec import history_of
from nyala.master.tservers import TServers
from nyala.wire.proto import catalog_pb2 as cat

OPENING = "BOOTSTRAPPING"
"""State of a reported replica that has not read its data yet, so its report has no holds."""


def is_expired(catalog: Catalog, tablet: CatalogTablet, now_us: int, history_s: int) -> bool:
    """Return whether a dropped tablet is older than its table's history.

    Args:
        catalog: catalog of the leader.
        tablet: tablet of a dropped range.
        now_us: microseconds since the epoch.
        history_s: history of tables without the option, in seconds.
    """
    table = catalog.table(tablet.table_id)
    if table is None or not table.live or not tablet.record.dropped_at:
        return False
    age_us = history_of(table.spec, history_s) * 1_000_000
    return now_us - to_micros(tablet.record.dropped_at) > age_us


def is_held(
    servers: TServers, tablet: CatalogTablet, monotonic_us: int, term: int, since_us: int
) -> bool:
    """Return whether a reader holds, or may hold, a time at which a dropped tablet had rows.

    A holder that is alive, or may be, and has not reported this replica to this leader may have a hold of it.

    Args:
        servers: the tablet servers known to this master.
        tablet: tablet of a dropped range.
        monotonic_us: monotonic time, in microseconds.
        term: in which this master leads.
        since_us: monotonic time at which this master was elected.
    """
    silent_are_dead = monotonic_us - since_us >= servers.unresponsive_us
    for uuid in tablet.holders:
        server = servers.get(uuid)
        alive = server is not None and servers.is_alive(server, monotonic_us)
        if server is None or server.full_in_term != term:
            if alive or not silent_are_dead:
                return True
            continue
        opening = alive and server.replicas.get(tablet.id) == OPENING
        if opening or server.held_us.get(tablet.id, 0) > monotonic_us:
            return True
    return False


def purge(tablet: CatalogTablet) -> CatalogOperation:
    """Return the operation that deletes a dropped tablet."""

    def decide(catalog: Catalog) -> CatalogPlan:
        now = catalog.tablet(tablet.id)
        table = catalog.table(tablet.table_id)
        if now is None or table is None or not now.dropped:
            return CatalogPlan()
        return deletion_plan(catalog, now, now.record.dropped_at)

    return CatalogOperation(
        "purge range", lambda _: Scope(tables=(tablet.table_id,), tablets=(tablet.id,)), decide
    )


def deletion_plan(catalog: Catalog, tablet: CatalogTablet, until: int) -> CatalogPlan:
    """Return the plan that deletes a dropped tablet.

    Args:
        catalog: catalog of the leader.
        tablet: tablet of a dropped range.
        until: hybrid time from which on the table can be read without it.
    """
    table = catalog.table(tablet.table_id)
    assert table is not None, f"tablet {tablet.id} has no table {tablet.table_id}"
    deleted: cat.TabletRecord = tablet.edit()
    deleted.state = TabletState.DELETED.value
    record = table.edit()
    record.history_from = max(record.history_from, until)
    orders: list[Action] = [DeleteTabletAction(server, tablet.id) for server in tablet.holders]
    return CatalogPlan((deleted,), (record,), actions=tuple(orders), answer=table.id)
