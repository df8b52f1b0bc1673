"""Quotas of bytes of tables: sizes of tablets as their leaders report them, and which tables are over.

In memory of one term: servers report the sizes with each heartbeat, and each answer has the present state
(level-triggered). A new leader master answers nothing about a table before it knows the sizes of all its
tablets, and servers keep the answer of the one before. On the loop only.
"""

from collections.abc import Iterable

from nyala.common.ids import TableId, TabletId
from nyala.machines.tables import quota_of
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTable
from nyala.wire.proto import nyala_pb2 as pb


class TableQuotas:
    """Sizes of the tables with a quota, in one term.

    Args:
        catalog: of the term.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._sizes: dict[TabletId, int] = {}

    def exchange(self, sizes: Iterable[pb.TabletSize]) -> list[pb.TableQuota]:
        """Record sizes of tablets; return the state of each of their tables of which all sizes are known.

        Args:
            sizes: of the tablets that a server leads.
        """
        sizes = list(sizes)
        self._sizes.update((TabletId(s.tablet_id), s.bytes) for s in sizes)
        found = []
        for table_id in dict.fromkeys(s.table_id for s in sizes):
            table = self._catalog.table(TableId(table_id))
            size = self.size_of(TableId(table_id))
            if table is not None and size is not None:
                over = _is_over(table, size)
                found.append(pb.TableQuota(table_id=table_id, bytes=size, over=over))
        return found

    def size_of(self, table_id: TableId) -> int | None:
        """Return the bytes of a table by its id, as `bytes_of`; None also if there is no such table."""
        table = self._catalog.table(table_id)
        return None if table is None else self.bytes_of(table)

    def bytes_of(self, table: CatalogTable) -> int | None:
        """Return the bytes of one replica of each tablet of a table; None: not all are known.

        They are known of tables with a quota, some seconds after it was set. Tablets of dropped ranges count
        as long as they are kept for their history.
        """
        if not quota_of(table.spec.options):
            return None
        sizes = [self._sizes.get(t.id) for t in self._catalog.tablets_of(table.id)]
        known = [size for size in sizes if size is not None]
        return sum(known) if len(known) == len(sizes) else None

    def over(self) -> list[CatalogTable]:
        """Return the tables that are over their quotas."""
        return [t for t in self._catalog.tables() if _is_over(t, self.bytes_of(t))]


def _is_over(table: CatalogTable, size: int | None) -> bool:
    """Return whether a table of so many bytes, None if they are not known, has reached its quota."""
    return size is not None and size >= quota_of(table.spec.options)
