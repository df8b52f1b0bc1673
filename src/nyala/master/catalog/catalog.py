"""The catalog in memory: tables and tablets, copy-on-write, so readers see committed values only.

Nothing here waits, so code between two awaits sees one state of the whole catalog. Only `operation.run`
publishes, and only what was replicated. Removed tables and deleted tablets are kept forever (S0.13, S0.15),
so that a replica that is reported late is known to be deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from nyala.common.errors import NotFound
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.machines import registry
from nyala.machines.kind import MachineKind
from nyala.master.catalog import access
from nyala.master.catalog.access import ACCESS_RECORDS, Access
from nyala.master.catalog.decisions import Decisions, rows_of
from nyala.master.catalog.plan import CatalogPlan
from nyala.master.catalog.records.parsing import parse
from nyala.master.catalog.records.rows import (
    CatalogRow,
    cluster_row,
    server_row,
    table_row,
    tablet_row,
)
from nyala.master.catalog.records.tables import (
    CatalogTable,
    CatalogTablet,
    TableState,
    TabletState,
    operation_key,
)
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server_list import ServerList

Id = TypeVar("Id", TableId, TabletId)


@dataclass(frozen=True, slots=True)
class PreparedPlan:
    """A plan with its encoded rows: replicated first, then published."""

    plan: CatalogPlan
    rows: tuple[CatalogRow, ...]


class ExecutedOperations:
    """Client operations that were executed, and the table of each, for exactly-once DDL."""

    def __init__(self) -> None:
        self.created: dict[tuple[bytes, int], TableId] = {}
        self.dropped: dict[tuple[bytes, int], TableId] = {}
        self.altered: dict[tuple[bytes, int], TableId] = {}

    def note(self, table: CatalogTable, before: CatalogTable | None = None) -> None:
        """Record the operations in a table's record, and forget those that its earlier record had instead."""
        if before is not None:
            self.dropped.pop(operation_key(before.record.dropped_by), None)
            for operation in before.record.altered_by:
                self.altered.pop(operation_key(operation), None)
        if table.record.created_by.client:
            self.created[operation_key(table.record.created_by)] = table.id
        if table.record.dropped_by.client:
            self.dropped[operation_key(table.record.dropped_by)] = table.id
        for operation in table.record.altered_by:
            self.altered[operation_key(operation)] = table.id

    def listed(self) -> dict[str, dict[tuple[bytes, int], TableId]]:
        """Return all operations by kind, read only."""
        return {"create": self.created, "drop": self.dropped, "alter": self.altered}


class Catalog:
    """Tables, tablets, and the indexes over them. On the loop only."""

    def __init__(self) -> None:
        self._tables: dict[TableId, CatalogTable] = {}
        self._names: dict[str, TableId] = {}
        self._tablets: dict[TabletId, CatalogTablet] = {}
        self._of_table: dict[TableId, dict[TabletId, None]] = {}
        self._counts: dict[ServerUuid, int] = {}  # replicas of live tablets
        self._awaited: dict[TabletId, None] = {}
        self._moving: dict[TabletId, None] = {}
        self.executed = ExecutedOperations()
        self._altering: dict[TableId, None] = {}
        self._creating: dict[TabletId, None] = {}
        self._kept: dict[TabletId, None] = {}
        self._recallable: dict[TableId, None] = {}
        self.cluster: cat.ClusterRecord | None = None
        self.servers = ServerList()
        self.decisions, self.access = Decisions(), Access()

    def table(self, table_id: TableId) -> CatalogTable | None:
        """Return a table by id, removed ones included."""
        return self._tables.get(table_id)

    def named(self, name: str) -> CatalogTable | None:
        """Return the table that has this name now."""
        table_id = self._names.get(name)
        return None if table_id is None else self._tables[table_id]

    def tablet(self, tablet_id: TabletId) -> CatalogTablet | None:
        """Return a tablet by id, deleted ones included."""
        return self._tablets.get(tablet_id)

    def successor(self, tablet_id: TabletId) -> CatalogTablet | None:
        """Return a tablet, or the last one that replaced it; None when there is no such tablet."""
        tablet = self._tablets.get(tablet_id)
        while tablet is not None and tablet.record.replaced_by:
            tablet = self._tablets.get(TabletId(tablet.record.replaced_by))
        return tablet

    def tables(self) -> list[CatalogTable]:
        """Return the tables that are not removed, by name."""
        return [self._tables[self._names[name]] for name in sorted(self._names)]

    def every_table(self) -> list[CatalogTable]:
        """Return all tables, removed ones included, in the order in which they became known."""
        return list(self._tables.values())

    def tablets(self) -> Iterable[CatalogTablet]:
        """All tablets, deleted ones included, in the order in which they became known."""
        return self._tablets.values()

    def tablets_of(self, table_id: TableId) -> list[CatalogTablet]:
        """Return the live tablets of a table in partition order, those of dropped ranges included."""
        found = (self._tablets[t] for t in self._of_table.get(table_id, {}))
        return [t for t in found if t.live]

    def current_of(self, table_id: TableId) -> list[CatalogTablet]:
        """Return the tablets of the ranges that a table has, in the order of their partitions."""
        return [t for t in self.tablets_of(table_id) if not t.dropped]

    def dropped_of(self, table_id: TableId) -> list[CatalogTablet]:
        """Return the tablets of a table's dropped ranges that are still kept."""
        return [t for t in self.tablets_of(table_id) if t.dropped]

    def kept(self) -> list[CatalogTablet]:
        """Return the tablets of dropped ranges that are still kept, of all tables."""
        return [self._tablets[t] for t in self._kept]

    def tablets_with_deleted(self, table_id: TableId) -> list[CatalogTablet]:
        """Return the tablets that a table has, and those deleted since this catalog was loaded."""
        return [self._tablets[t] for t in self._of_table.get(table_id, {})]

    def created_by(self, operation: tuple[bytes, int]) -> TableId | None:
        """Return the table that this create operation made, if it was executed already."""
        return self.executed.created.get(operation)

    def dropped_by(self, operation: tuple[bytes, int]) -> TableId | None:
        """Return the table that this drop operation removed, if it was executed already."""
        return self.executed.dropped.get(operation)

    def altered_by(self, operation: tuple[bytes, int]) -> TableId | None:
        """Return the table that this operation altered or recalled, if it was executed already."""
        return self.executed.altered.get(operation)

    def altering(self) -> list[CatalogTable]:
        """Return the tables with tablets that have not applied their alteration, in order of its start."""
        return [self._tables[t] for t in self._altering]

    def creating(self) -> list[CatalogTablet]:
        """Return the tablets that have no leader yet, in the order in which they became known."""
        return [self._tablets[t] for t in self._creating]

    def recallable(self) -> list[CatalogTable]:
        """Return the dropped tables that can be recalled, in the order in which they were dropped."""
        return [self._tables[t] for t in self._recallable]

    def require(self, name: str, kind: MachineKind = registry.TABLE) -> CatalogTable:
        """Return the table, of any kind, that has this name.

        Args:
            name: of the table.
            kind: of those that the error names.

        Raises:
            NotFound: there is none; the message names some that there are.
        """
        table = self.named(name)
        if table is None:
            known = [t.name for t in self.tables() if t.kind is kind]
            listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise NotFound(
                f"no {kind.name} {name!r}; "
                + (
                    f"the {kind.name}s are: {listed}"
                    if known
                    else f"the cluster has no {kind.name}s yet"
                )
            )
        return table

    def replica_counts(self) -> dict[ServerUuid, int]:
        """Return the number of replicas of live tablets that each server is to have."""
        return dict(self._counts)

    def awaited(self) -> list[CatalogTablet]:
        """Return the live tablets with members of the first configuration that have no replica yet."""
        return [self._tablets[t] for t in self._awaited]

    def moving(self) -> list[CatalogTablet]:
        """Return the live tablets with members that are to be promoted, or replaced."""
        return [self._tablets[t] for t in self._moving]

    @property
    def size(self) -> int:
        """Number of tablets, deleted ones included."""
        return len(self._tablets)

    def tablets_from(self, begin: int, most: int) -> list[CatalogTablet]:
        """Return a range of the tablets, in the order in which they became known."""
        return list(islice(self._tablets.values(), begin, begin + most))

    def draft(self, plan: CatalogPlan) -> PreparedPlan:
        """Encode the rows of a plan; changes nothing that a reader can see."""
        rows = [*map(table_row, plan.tables), *map(tablet_row, plan.tablets)]
        rows += map(server_row, plan.servers)
        if plan.cluster is not None:
            rows.append(cluster_row(plan.cluster))
        return PreparedPlan(plan, (*rows, *rows_of(plan), *access.rows_of(plan.access)))

    def publish(self, draft: PreparedPlan) -> None:
        """Publish a replicated plan: tablets first, then tables, then the other maps (S0.60)."""
        for tablet in sorted(map(CatalogTablet, draft.plan.tablets), key=_partition_order):
            self._put_tablet(tablet)
        for table_record in draft.plan.tables:
            self._put_table(CatalogTable(table_record))
        for server in draft.plan.servers:
            self.servers.put(server)
        if draft.plan.cluster is not None:
            self.cluster = draft.plan.cluster
        self.decisions.publish(draft.plan)
        self.access.publish(draft.plan)

    def follow(self, plan: CatalogPlan) -> None:
        """Apply the combined effect of many operations, in which names may have moved between tables."""
        for record in plan.tables:
            self._free_name(TableId(record.id))
        self.publish(PreparedPlan(plan, ()))

    def load(self, rows: Iterable[CatalogRow]) -> None:
        """Fill an empty catalog from a scan of the whole sys catalog.

        Raises:
            Corrupt: a row cannot be read.
        """
        assert not self._tables, f"load into a catalog of {len(self._tables)} tables"
        assert not self._tablets, f"load into a catalog of {len(self._tablets)} tablets"
        tablets: list[CatalogTablet] = []
        for row in rows:
            item = parse(row)
            if isinstance(item, CatalogTable):
                self._put_table(item)
            elif isinstance(item, CatalogTablet):
                tablets.append(item)
            elif isinstance(item, pb.ListedServer):
                self.servers.put(item)
            elif isinstance(item, cat.ClusterRecord):
                self.cluster = item
            elif item is not None:
                part = self.access if isinstance(item, ACCESS_RECORDS) else self.decisions
                part.load(item)
        self.decisions.loaded()
        for tablet in sorted(tablets, key=_partition_order):
            self._put_tablet(tablet)

    def _put_tablet(self, tablet: CatalogTablet) -> None:
        before = self._tablets.get(tablet.id)
        assert before is None or before.live or not tablet.live, (
            f"{tablet.id} was deleted, and is published again"
        )
        self._tablets[tablet.id] = tablet
        _keep(self._creating, tablet.id, tablet.state is TabletState.CREATING)
        _keep(self._kept, tablet.id, tablet.dropped)
        if tablet.live:
            self._of_table.setdefault(tablet.table_id, {})[tablet.id] = None
        self._count(before, tablet)
        _keep(self._awaited, tablet.id, bool(tablet.awaited))
        _keep(self._moving, tablet.id, tablet.live and tablet.moves)

    def _count(self, before: CatalogTablet | None, tablet: CatalogTablet) -> None:
        """Update the numbers of replicas per server."""
        if before is not None and (before.live, before.members) == (tablet.live, tablet.members):
            return
        for change, it in (-1, before), (1, tablet):
            for server in it.members if it is not None and it.live else ():
                self._counts[server] = self._counts.get(server, 0) + change
                if not self._counts[server]:
                    del self._counts[server]

    def _free_name(self, table_id: TableId) -> None:
        before = self._tables.get(table_id)
        if before is not None and self._names.get(before.name) == table_id:
            del self._names[before.name]

    def _put_table(self, table: CatalogTable) -> None:
        self._free_name(table.id)
        before = self._tables.get(table.id)
        self._tables[table.id] = table
        if table.live:
            holder = self._names.get(table.name)
            assert holder is None, f"tables {holder} and {table.id} are both named {table.name!r}"
            self._names[table.name] = table.id
        _keep(self._altering, table.id, table.state is TableState.ALTERING)
        _keep(self._recallable, table.id, table.recallable)
        self.executed.note(table, before)


def _keep(index: dict[Id, None], key: Id, wanted: bool) -> None:
    if not wanted:
        index.pop(key, None)
    else:
        index.setdefault(key)


def _partition_order(tablet: CatalogTablet) -> tuple[str, bytes, tuple[int, ...], str]:
    partition = tablet.record.partition
    return tablet.table_id, partition.range.lower.key, tuple(partition.buckets), tablet.id
