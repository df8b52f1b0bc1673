"""What is known of tables and tablets: the reading half of a catalog.

Rules: nothing here waits, or changes anything; the other half is `catalog.py`.
"""

from collections.abc import Iterable
from itertools import islice

from nyala.common.errors import NotFound
from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.master.catalog.records import Table, Tablet, operation_key


class Executed:
    """Which operations of clients are known to have been executed, and on which table."""

    def __init__(self) -> None:
        self.created: dict[tuple[bytes, int], TableId] = {}
        self.dropped: dict[tuple[bytes, int], TableId] = {}
        self.altered: dict[tuple[bytes, int], TableId] = {}

    def note(self, table: Table) -> None:
        """Take what a table's record says."""
        if table.record.created_by.client:
            self.created[operation_key(table.record.created_by)] = table.id
        if table.record.dropped_by.client:
            self.dropped[operation_key(table.record.dropped_by)] = table.id
        for operation in table.record.altered_by:
            self.altered[operation_key(operation)] = table.id

    def listed(self) -> dict[str, dict[tuple[bytes, int], TableId]]:
        """Return all of them, read only."""
        return {"create": self.created, "drop": self.dropped, "alter": self.altered}


class Known:
    """What can be asked of a catalog. On the loop only."""

    _tables: dict[TableId, Table]
    _names: dict[str, TableId]
    _tablets: dict[TabletId, Tablet]
    _of_table: dict[TableId, dict[TabletId, None]]
    _counts: dict[ServerUuid, int]
    _awaited: dict[TabletId, None]
    _moving: dict[TabletId, None]
    _creating: dict[TabletId, None]
    _altering: dict[TableId, None]
    _kept: dict[TabletId, None]
    _recallable: dict[TableId, None]
    executed: Executed

    def table(self, table_id: TableId) -> Table | None:
        """Return a table by id, removed ones included."""
        return self._tables.get(table_id)

    def named(self, name: str) -> Table | None:
        """Return the table that has this name now."""
        table_id = self._names.get(name)
        return None if table_id is None else self._tables[table_id]

    def tablet(self, tablet_id: TabletId) -> Tablet | None:
        """Return a tablet by id, deleted ones included."""
        return self._tablets.get(tablet_id)

    def successor(self, tablet_id: TabletId) -> Tablet | None:
        """Return a tablet, or the one that has its key range by now; None when there is no such tablet."""
        tablet = self._tablets.get(tablet_id)
        while tablet is not None and tablet.record.replaced_by:
            tablet = self._tablets.get(TabletId(tablet.record.replaced_by))
        return tablet

    def tables(self) -> list[Table]:
        """Return the tables that are not removed, by name."""
        return [self._tables[self._names[name]] for name in sorted(self._names)]

    def every_table(self) -> list[Table]:
        """Return all tables, removed ones included, in the order in which they became known."""
        return list(self._tables.values())

    def tablets(self) -> Iterable[Tablet]:
        """All tablets, deleted ones included, in the order in which they became known."""
        return self._tablets.values()

    def tablets_of(self, table_id: TableId) -> list[Tablet]:
        """Return the live tablets of a table, of dropped ranges too, in the order of their partitions."""
        found = (self._tablets[t] for t in self._of_table.get(table_id, {}))
        return [t for t in found if t.live]

    def current_of(self, table_id: TableId) -> list[Tablet]:
        """Return the tablets of the ranges that a table has, in the order of their partitions."""
        return [t for t in self.tablets_of(table_id) if not t.dropped]

    def dropped_of(self, table_id: TableId) -> list[Tablet]:
        """Return the tablets of a table's dropped ranges that are still kept."""
        return [t for t in self.tablets_of(table_id) if t.dropped]

    def kept(self) -> list[Tablet]:
        """Return the tablets of dropped ranges that are still kept, of all tables."""
        return [self._tablets[t] for t in self._kept]

    def ever_of(self, table_id: TableId) -> list[Tablet]:
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

    def altering(self) -> list[Table]:
        """Return the tables that some tablet has yet to follow, in the order in which they began."""
        return [self._tables[t] for t in self._altering]

    def creating(self) -> list[Tablet]:
        """Return the tablets that have no leader yet, in the order in which they became known."""
        return [self._tablets[t] for t in self._creating]

    def recallable(self) -> list[Table]:
        """Return the dropped tables that can be recalled, in the order in which they were dropped."""
        return [self._tables[t] for t in self._recallable]

    def require(self, name: str) -> Table:
        """Return the table that has this name.

        Raises:
            NotFound: there is none; the message names some that there are.
        """
        table = self.named(name)
        if table is None:
            known = sorted(self._names)
            listed = ", ".join(known[:10]) + (", ..." if len(known) > 10 else "")
            raise NotFound(
                f"no table {name!r}; "
                + (f"the tables are: {listed}" if known else "the cluster has no tables yet")
            )
        return table

    def replica_counts(self) -> dict[ServerUuid, int]:
        """Return how many replicas of live tablets each server is to have."""
        return dict(self._counts)

    def awaited(self) -> list[Tablet]:
        """Return the live tablets of which some member of the first configuration has shown nothing yet."""
        return [self._tablets[t] for t in self._awaited]

    def moving(self) -> list[Tablet]:
        """Return the live tablets with members that are to be promoted, or replaced."""
        return [self._tablets[t] for t in self._moving]

    @property
    def size(self) -> int:
        """How many tablets there are, deleted ones included."""
        return len(self._tablets)

    def turn(self, begin: int, most: int) -> list[Tablet]:
        """Return some tablets, in the order in which they became known; nothing from the last one on."""
        return list(islice(self._tablets.values(), begin, begin + most))
