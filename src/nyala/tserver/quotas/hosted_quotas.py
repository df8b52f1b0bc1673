"""Quotas of bytes of tables: sizes for the masters, and refusals of what adds data to a table over its quota.

The leader master adds the sizes of a table's tablets and answers each heartbeat with the tables that are
over (level-triggered); without an answer, the last one is in force. Used on the event loop only.
"""

from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from nyala.common.errors import QuotaExceeded
from nyala.common.ids import TableId
from nyala.common.metrics import Metrics
from nyala.machines import registry
from nyala.machines.tables import QUOTA_OPTION, quota_of
from nyala.tablet.files.manifest import TabletInfo
from nyala.tablet.files.replicated_ops import RowOp
from nyala.tablet.tablet import Tablet
from nyala.tserver.tablets import Tablets
from nyala.wire.proto import nyala_pb2 as pb

_DELETES = (RowOp.DELETE, RowOp.DELETE_IGNORE)


class HostedQuotas:
    """Tables with a quota of which this server leads tablets.

    Args:
        metrics: registry of the counter of refusals.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._over: dict[TableId, int] = {}  # sizes of the tables that are over
        self._refused = metrics.counter(
            "tserver_quota_refusals",
            "Batches of rows that were refused because their table is over its quota of bytes.",
        )

    def sizes(self, tablets: Tablets) -> list[pb.TabletSize]:
        """Return the sizes of the tablets that this server leads of tables with a quota."""
        found = []
        for replica in tablets.host.all():
            if not replica.is_leader:
                continue
            tablet = registry.of_class(replica.machine, Tablet)
            if tablet is not None and QUOTA_OPTION in tablet.info.options:
                info = tablet.info
                found.append(
                    pb.TabletSize(
                        tablet_id=info.tablet_id, table_id=info.table_id, bytes=tablet.data_bytes
                    )
                )
        led = {size.table_id for size in found}
        self._over = {table: size for table, size in self._over.items() if table in led}
        return found

    def take(self, states: Iterable[pb.TableQuota]) -> None:
        """Take the leader master's answer: for each table of which it knows all sizes, whether it is over."""
        for state in states:
            if state.over:
                self._over[TableId(state.table_id)] = state.bytes
            else:
                self._over.pop(TableId(state.table_id), None)

    def check(self, info: TabletInfo, op: RowOp, batch: pa.RecordBatch) -> None:
        """Check that a batch of rows may be written: to a table over its quota only deletes are.

        Args:
            info: of the tablet.
            op: the operation.
            batch: the rows, with their operations if `op` is MIXED.

        Raises:
            QuotaExceeded: it adds data to a table that is over its quota.
        """
        size = self._over.get(info.table_id)
        if size is None:
            return
        limit = quota_of(info.options)
        # the quota may have been raised since the masters' answer
        if size < limit or not limit or _only_deletes(op, batch):
            return
        self._refused.inc()
        raise QuotaExceeded(
            f"table {info.table_name!r} has {size} bytes, and its quota is {limit} ({QUOTA_OPTION}), so that "
            "it takes deletes only; drop ranges or delete rows, whose bytes are free some time after "
            "history_max_age_s, or raise the quota: nyala table set_extra_config "
            f"{info.table_name} {QUOTA_OPTION} BYTES",
            {"table": info.table_name, "bytes": str(size), "limit": str(limit)},
        )


def _only_deletes(op: RowOp, batch: pa.RecordBatch) -> bool:
    if op is not RowOp.MIXED:
        return op in _DELETES
    if not batch.num_rows:
        return True
    codes = batch.column(batch.num_columns - 1).fill_null(0).to_numpy()
    return bool(np.isin(codes, _DELETES).all())
