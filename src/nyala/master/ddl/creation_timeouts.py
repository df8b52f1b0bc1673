"""Creation timeouts: tablets that get no leader in time are replaced by others (S0.69).

The timeout restarts with each progress: an order to create a replica that was not sent before, a replica that
is reported for the first time. This leader remembers only the time since the last progress.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from nyala.common.ids import ServerUuid, TableId, TabletId
from nyala.master.catalog.catalog import Catalog
from nyala.master.catalog.records.tables import CatalogTablet
from nyala.master.ddl import replace_tablet
from nyala.master.ddl.create_table import PlanInputs
from nyala.master.ddl.operation import CatalogOperation

MAX_REPLACED = 100
"""Maximum number of tablets of a table that are replaced in one batch."""
MAX_DOUBLINGS = 6
"""Maximum number of times that the timeout doubles with the replacements of a tablet."""


@dataclass(slots=True)
class _Waiting:
    """Reported replicas of a tablet, and the time of the last progress."""

    shown: int
    since_us: int


class Creations:
    """Tablets that one leader creates in one term. On the loop only.

    Args:
        timeout_us: time without progress after which a tablet's creation has timed out.
    """

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._waiting: dict[TabletId, _Waiting] = {}
        self._tried: dict[TabletId, dict[ServerUuid, None]] = {}

    def record_attempt(self, tablet: TabletId, server: ServerUuid) -> None:
        """Note that a server was sent the order to make its replica, whatever it answered."""
        self._tried.setdefault(tablet, {})[server] = None

    def timed_out(
        self, catalog: Catalog, reporting: Collection[ServerUuid], now_us: int
    ) -> list[CatalogTablet]:
        """Return the tablets without progress for the timeout.

        Args:
            catalog: catalog of the leader.
            reporting: live servers that have sent a full report, and are sent orders.
            now_us: monotonic.
        """
        creating = catalog.creating()
        for known in (self._waiting, self._tried):
            if len(known) > len(creating):
                creating_ids = {t.id for t in creating}
                for other in [t for t in known if t not in creating_ids]:
                    del known[other]
        return [t for t in creating if self._has_timed_out(t, reporting, now_us)]

    def _has_timed_out(
        self, tablet: CatalogTablet, reporting: Collection[ServerUuid], now_us: int
    ) -> bool:
        tried = self._tried.get(tablet.id, {})
        moves = any(m in reporting and m not in tried for m in tablet.awaited)
        shown = len(tablet.record.reported_by)
        known = self._waiting.get(tablet.id)
        if known is None or moves or tablet.held or known.shown != shown:
            self._waiting[tablet.id] = _Waiting(shown, now_us)
            return False
        timeout_us = self._timeout_us << min(tablet.record.attempt, MAX_DOUBLINGS)
        return now_us - known.since_us >= timeout_us


def replacements(
    catalog: Catalog, timed_out: Sequence[CatalogTablet], inputs: PlanInputs
) -> list[CatalogOperation]:
    """Return the operations that replace tablets; none for a table that has too few live servers now.

    Args:
        catalog: the leader's catalog.
        timed_out: tablets without a leader after the creation timeout.
        inputs: live servers, limits and randomness.
    """
    by_table: dict[TableId, list[TabletId]] = {}
    for tablet in timed_out:
        table = catalog.table(tablet.table_id)
        if table is not None and table.spec.replicas <= len(inputs.live):
            by_table.setdefault(table.id, []).append(tablet.id)
    return [
        replace_tablet.operation(table, ids[first : first + MAX_REPLACED], inputs)
        for table, ids in by_table.items()
        for first in range(0, len(ids), MAX_REPLACED)
    ]
