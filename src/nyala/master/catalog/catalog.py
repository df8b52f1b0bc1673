"""Tables and tablets in memory, copy-on-write: readers see committed values only.

Rules: nothing waits here, so a reader between two awaits sees one state of the whole catalog. Only
`operation.run` publishes, and only what has been replicated. Removed tables and deleted tablets stay,
for ever (S0.13, S0.15), so that a replica that turns up late is known to be deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.master.catalog.known import Executed, Known
from nyala.master.catalog.plan import Plan
from nyala.master.catalog.records import (
    Row,
    Table,
    TableState,
    Tablet,
    TabletState,
    cluster_row,
    parse,
    server_row,
    table_row,
    tablet_row,
)
from nyala.wire.proto import catalog_pb2 as cat
from nyala.wire.proto import nyala_pb2 as pb
from nyala.wire.server_list import ServerList

Id = TypeVar("Id", TableId, TabletId)


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan made ready: what is replicated, and what is published once it is."""

    plan: Plan
    rows: tuple[Row, ...]


class Catalog(Known):
    """What the leader master knows of tables and tablets. On the loop only."""

    def __init__(self) -> None:
        self._tables: dict[TableId, Table] = {}
        self._names: dict[str, TableId] = {}
        self._tablets: dict[TabletId, Tablet] = {}
        self._of_table: dict[TableId, dict[TabletId, None]] = {}
        self._counts: dict[ServerUuid, int] = {}  # replicas of live tablets
        self._awaited: dict[TabletId, None] = {}
        self._moving: dict[TabletId, None] = {}
        self.executed = Executed()
        self._altering: dict[TableId, None] = {}
        self._creating: dict[TabletId, None] = {}
        self._kept: dict[TabletId, None] = {}
        self._recallable: dict[TableId, None] = {}
        self.cluster: cat.ClusterRecord | None = None
        self.servers = ServerList()

    def draft(self, plan: Plan) -> Draft:
        """Make a plan ready to be replicated; changes nothing that a reader can see."""
        rows = [*map(table_row, plan.tables), *map(tablet_row, plan.tablets)]
        rows += map(server_row, plan.servers)
        if plan.cluster is not None:
            rows.append(cluster_row(plan.cluster))
        return Draft(plan, tuple(rows))

    def publish(self, draft: Draft) -> None:
        """Show what has been replicated: tablets first, then tables, then the other maps (S0.60)."""
        for tablet in sorted(map(Tablet, draft.plan.tablets), key=_partition_order):
            self._put_tablet(tablet)
        for table_record in draft.plan.tables:
            self._put_table(Table(table_record))
        for server in draft.plan.servers:
            self.servers.put(server)
        if draft.plan.cluster is not None:
            self.cluster = draft.plan.cluster

    def follow(self, plan: Plan) -> None:
        """Take the outcome of many operations at once; names may have changed hands among the tables."""
        for record in plan.tables:
            self._free_name(TableId(record.id))
        self.publish(Draft(plan, ()))

    def load(self, rows: Iterable[Row]) -> None:
        """Fill an empty catalog from a scan of the whole sys catalog.

        Raises:
            Corrupt: a row cannot be read.
        """
        assert not self._tables, f"load into a catalog of {len(self._tables)} tables"
        assert not self._tablets, f"load into a catalog of {len(self._tablets)} tablets"
        tablets: list[Tablet] = []
        for row in rows:
            item = parse(row)
            if isinstance(item, Table):
                self._put_table(item)
            elif isinstance(item, Tablet):
                tablets.append(item)
            elif isinstance(item, pb.ListedServer):
                self.servers.put(item)
            elif item is not None:
                self.cluster = item
        for tablet in sorted(tablets, key=_partition_order):
            self._put_tablet(tablet)

    def _put_tablet(self, tablet: Tablet) -> None:
        before = self._tablets.get(tablet.id)
        assert before is None or before.live or not tablet.live, f"{tablet.id} rises from the dead"
        self._tablets[tablet.id] = tablet
        _keep(self._creating, tablet.id, tablet.state is TabletState.CREATING)
        _keep(self._kept, tablet.id, tablet.dropped)
        if tablet.live:
            self._of_table.setdefault(tablet.table_id, {})[tablet.id] = None
        self._count(before, tablet)
        _keep(self._awaited, tablet.id, bool(tablet.awaited))
        _keep(self._moving, tablet.id, tablet.live and tablet.moves)

    def _count(self, before: Tablet | None, tablet: Tablet) -> None:
        """Note whose replicas become more, or fewer."""
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

    def _put_table(self, table: Table) -> None:
        self._free_name(table.id)
        self._tables[table.id] = table
        if table.live:
            holder = self._names.get(table.name)
            assert holder is None, f"tables {holder} and {table.id} are both named {table.name!r}"
            self._names[table.name] = table.id
        _keep(self._altering, table.id, table.state is TableState.ALTERING)
        _keep(self._recallable, table.id, table.recallable)
        self.executed.note(table)


def _keep(index: dict[Id, None], key: Id, wanted: bool) -> None:
    if not wanted:
        index.pop(key, None)
    else:
        index.setdefault(key)


def _partition_order(tablet: Tablet) -> tuple[str, bytes, tuple[int, ...], str]:
    partition = tablet.record.partition
    return tablet.table_id, partition.range.lower.key, tuple(partition.buckets), tablet.id
