"""Operations that are recorded in the catalog and not complete, each with what it waits for. Reads only.

Each has its commit point in the catalog: a table's or tablet's record, a server's mark, a configuration.
From there on every leader derives the next step from the present state, and so continues the operations of
the last one. The id of an operation contains that of its record, so it is the same under every leader.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.common.texts.counted import counted
from nyala.master.access import authorities
from nyala.master.access.authorities import RotationStep
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTable, CatalogTablet
from nyala.master.services.operations.waits import LeaderView
from nyala.wire.proto import nyala_pb2 as pb

Waits = Iterator[pb.OperationWait]


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """One operation that is not complete.

    Attributes:
        id: the same under every leader.
        what: name of the operation.
        subject: name or id of what it changes.
        step: condition that it waits for.
        commit_point: catalog record from which a later leader continues it.
        waits: returns what it waits for.
    """

    id: str
    what: str
    subject: str
    step: str
    commit_point: str
    waits: Callable[[], Waits]


def under_way(view: LeaderView) -> list[RecordedOperation]:
    """Return those that are not complete: the authority's, servers', moves, tables'."""
    catalog = view.term.catalog
    counts = catalog.replica_counts()
    leaving = [s for s in catalog.servers.all() if s.decommission]
    found = [*_rotation(catalog)]
    found += [_decommission(view, s, counts.get(ServerUuid(s.uuid), 0)) for s in leaving]
    for tablet in catalog.moving():
        found += _moves(view, tablet)
    for table_id, tablets in _by_table(catalog.creating()).items():
        found.append(_creation(view, table_id, tablets))
    found += [_alteration(view, table) for table in catalog.altering()]
    gone = [t for t in catalog.tablets() if t.gone]
    remaining = {t.id: _remaining(view, t) for t in gone}
    for table_id, tablets in _by_table([t for t in gone if remaining[t.id]]).items():
        found.append(_deletion(view, table_id, {t.id: remaining[t.id] for t in tablets}))
    return found


def _rotation(catalog: Catalog) -> Iterator[RecordedOperation]:
    """Yield the replacement of the certificate authority, if one is under way."""
    record = catalog.access.authorities
    step = authorities.step_of(record)
    if record is None or step is RotationStep.NONE:
        return
    new = authorities.id_of(authorities.newest_of(record))
    condition = (
        "every live server trusts the new authority and has its key (nyala ca show)"
        if step is RotationStep.ADDED
        else "an administrator retires the old authority (nyala ca retire)"
    )
    yield RecordedOperation(
        id=f"rotate-{new}",
        what="replace certificate authority",
        subject=f"by {new}",
        step=step.value,
        commit_point="record of the certificate authorities",
        waits=lambda: iter([pb.OperationWait(what=condition)]),
    )


def _decommission(view: LeaderView, server: pb.ListedServer, replicas: int) -> RecordedOperation:
    def waits() -> Waits:
        for tablet in view.term.catalog.tablets():
            if tablet.runs and server.uuid in tablet.members:
                yield from _of_move(view, tablet)

    return RecordedOperation(
        id=f"decommission-{server.uuid}",
        what="decommission",
        subject=server.uuid,
        step=f"{counted(replicas, 'replica')} to be moved"
        if replicas
        else "done: no replicas are left",
        commit_point=f"version {server.version} of the server list",
        waits=waits,
    )


def _moves(view: LeaderView, tablet: CatalogTablet) -> list[RecordedOperation]:
    coming = _coming(tablet)
    step = f"{coming[0]} gets the data, and a vote" if coming else "another one votes, or is chosen"
    return [
        RecordedOperation(
            id=f"move-{tablet.id}-{member.uuid}",
            what="move replica",
            subject=f"{tablet.id} from {member.uuid}",
            step=step,
            commit_point=f"configuration of {tablet.config_id}",
            waits=lambda: _of_move(view, tablet),
        )
        for member in tablet.consensus.members
        if member.replace
    ]


def _coming(tablet: CatalogTablet) -> list[str]:
    """Return the members that get the data, and a vote."""
    return [m.uuid for m in tablet.consensus.members if m.promote and not m.voter]


def _of_move(view: LeaderView, tablet: CatalogTablet) -> Waits:
    coming = _coming(tablet)
    for uuid in coming:
        yield from view.server(
            tablet.id, ServerUuid(uuid), "the new member catches up with the leader"
        )
    yield from (w for w in view.orders(tablet.id) if w.server not in coming)


def _creation(
    view: LeaderView, table_id: TableId, tablets: list[CatalogTablet]
) -> RecordedOperation:
    catalog = view.term.catalog

    def waits() -> Waits:
        for tablet in tablets:
            for uuid in tablet.awaited:
                yield from view.server(tablet.id, uuid, "the replica is created and reported")
            if tablet.held:
                what = "all other tablets apply the version that adds the range"
                yield pb.OperationWait(what=what, tablet_id=tablet.id)
            elif not tablet.awaited:
                yield pb.OperationWait(what="the tablet's leader reports", tablet_id=tablet.id)

    return RecordedOperation(
        id=f"create-{table_id}",
        what=f"create tablets of a {_kind(catalog, table_id)}",
        subject=_name(catalog, table_id),
        step=f"{len(tablets)} of {counted(len(catalog.current_of(table_id)), 'tablet')} had no leader yet",
        commit_point="records of the table and its tablets",
        waits=waits,
    )


def _alteration(view: LeaderView, table: CatalogTable) -> RecordedOperation:
    tablets = view.term.catalog.tablets_of(table.id)
    late = [t for t in tablets if view.servers.schema_version(t.id) < table.version]

    def waits() -> Waits:
        for tablet in late:
            if leader := tablet.consensus.leader:
                what = f"the leader reports schema version {table.version}"
                yield from view.server(tablet.id, ServerUuid(leader), what)
            else:
                yield pb.OperationWait(what="the tablet has no leader", tablet_id=tablet.id)

    return RecordedOperation(
        id=f"alter-{table.id}",
        what=f"alter {table.kind.name}",
        subject=table.name,
        step=f"{len(tablets) - len(late)} of {len(tablets)} tablets report schema version {table.version}",
        commit_point=f"schema version {table.version} in the table's record",
        waits=waits,
    )


def _remaining(view: LeaderView, tablet: CatalogTablet) -> list[ServerUuid]:
    """Return the servers that report a replica of a deleted tablet, or that died before they reported."""
    found = []
    for uuid in tablet.holders:
        server, listed = view.servers.get(uuid), view.term.catalog.servers.get(uuid)
        if server is not None and server.full_in_term == view.term.memory.term:
            remains = tablet.id in server.replicas or tablet.id in server.tombstones
        else:
            remains = listed is not None and not listed.alive
        if remains:
            found.append(uuid)
    return found


def _deletion(
    view: LeaderView, table_id: TableId, remaining: dict[TabletId, list[ServerUuid]]
) -> RecordedOperation:
    """Return the deletion of tablets of a table.

    Args:
        view: state of the leader.
        table_id: id of the table.
        remaining: servers that have, or may have, a replica, by tablet.
    """

    def waits() -> Waits:
        for tablet, servers in remaining.items():
            for uuid in servers:
                yield from view.server(tablet, uuid, "the replica is deleted and this is reported")

    catalog = view.term.catalog
    replicas = sum(map(len, remaining.values()))
    return RecordedOperation(
        id=f"delete-{table_id}",
        what=f"delete tablets of a {_kind(catalog, table_id)}",
        subject=_name(catalog, table_id),
        step=f"{counted(replicas, 'replica')} of {counted(len(remaining), 'tablet')} may remain",
        commit_point="records of the tablets: DELETED or REPLACED",
        waits=waits,
    )


def _by_table(tablets: list[CatalogTablet]) -> dict[TableId, list[CatalogTablet]]:
    found: dict[TableId, list[CatalogTablet]] = {}
    for tablet in tablets:
        found.setdefault(tablet.table_id, []).append(tablet)
    return found


def _name(catalog: Catalog, table_id: TableId) -> str:
    table = catalog.table(table_id)
    return table_id if table is None else table.name


def _kind(catalog: Catalog, table_id: TableId) -> str:
    table = catalog.table(table_id)
    return "table" if table is None else table.kind.name
