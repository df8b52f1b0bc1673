"""Rows grouped by tablet and cut into requests; `upload.py` sends them."""

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from nyala.client.cluster.tablet_cache import OpenTable, TabletCache
from nyala.client.deadline import Attempts
from nyala.client.write import request_size
from nyala.client.write.pending_call import Written
from nyala.client.write.row_outcomes import RowErrors
from nyala.client.write.upload import MAX_WINDOWS, RowSender, TabletRows, Upload, Writing
from nyala.common.partitioning.partition import locate
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.tasks import Lane

NO_PARTITION = "no_partition"


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits of the batches into which a write is cut."""

    batch_rows: int = 10_000
    batch_bytes: int = 1 << 20
    ahead_bytes: int = 64 << 20
    """Of one call: rows that are accepted and not acknowledged."""


class Batcher:
    """Large writes of one client. Runs on the client's loop.

    Args:
        env: clock and lanes.
        requests: number and deliver each batch.
        clock: merges the stamps of the writes.
        limits: limits of one batch.
        locations: looks up a table's ranges again when a row has no partition or its tablet was retired;
            None: ranges never change.
    """

    def __init__(
        self,
        env: Env,
        requests: RowSender,
        clock: HybridClock,
        limits: BatchLimits,
        locations: TabletCache | None = None,
    ) -> None:
        self._env = env
        self._requests = requests
        self._clock = clock
        self._limits = limits
        self._locations = locations

    def begin(self, table: OpenTable, op: int, all_or_nothing: bool, timeout_ms: int) -> Upload:
        """Begin a write whose rows come batch by batch.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            all_or_nothing: per tablet and batch of `BatchLimits`: one failing row voids the rest.
            timeout_ms: maximum time between two acknowledged batches.
        """
        call = Writing(table, op, all_or_nothing, Attempts(self._env, timeout_ms))
        return Upload(self._env, self, self._requests, self._clock, call)

    async def write(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, all_or_nothing: bool,
        timeout_ms: int,
    ) -> Written:  # fmt: skip
        """See `Writer.write`.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            batch: the rows, by column name.
            all_or_nothing: one failing row voids the others of its request.
            timeout_ms: deadline, from now.
        """
        upload = self.begin(table, op, all_or_nothing, timeout_ms)
        try:
            await upload.take(batch)
            return await upload.finish()
        finally:  # also when this caller is cancelled
            upload.abandon()

    def window_rows(self, table: OpenTable, batch: pa.RecordBatch) -> int:
        """Return how many rows of a batch like this are grouped at a time."""
        return _window_rows(table, batch, self._within(table, batch))

    def pieces(self, table: OpenTable, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Split the rows of one tablet into requests; return (first row, piece)."""
        most = request_size.max_row_bytes(table, batch.num_columns, 2 * self._limits.batch_bytes)
        return cut_batch(batch, self._within(table, batch), most)

    def _within(self, table: OpenTable, batch: pa.RecordBatch) -> BatchLimits:
        """Return the limits of a request to a table: the client's, or the servers' if that is smaller."""
        limits = self._limits
        return replace(
            limits,
            batch_bytes=request_size.max_row_bytes(table, batch.num_columns, limits.batch_bytes),
        )

    async def group(
        self, call: Writing, window: pa.RecordBatch, first: int
    ) -> tuple[list[TabletRows], RowErrors]:
        """Group rows by tablet; the ranges are looked up again before a row is reported as without partition.

        Args:
            call: the write that the rows belong to.
            window: consecutive rows of a write.
            first: position of the first row in the write.

        Raises:
            TimedOut: some row has no partition in the known ranges, and no leader master answered.
        """
        parts, errors = await self._cut(call.table, window, first)
        if self._locations is None or all(code != NO_PARTITION for _, code, _ in errors):
            return parts, errors
        return await self.regroup(call, window, first)

    async def regroup(
        self, call: Writing, window: pa.RecordBatch, first: int
    ) -> tuple[list[TabletRows], RowErrors]:
        """Group rows after looking up the tablets at the leader master. Raises as `group`.

        Args:
            call: the write that the rows belong to.
            window: consecutive rows of a write.
            first: position of the first row in the write.
        """
        if self._locations is not None:
            left_ms = max(1, call.attempts.left_ms())
            await self._locations.refresh(call.table, left_ms, by_leader=True)
        return await self._cut(call.table, window, first)

    async def _cut(
        self, table: OpenTable, window: pa.RecordBatch, first: int
    ) -> tuple[list[TabletRows], RowErrors]:
        as_it_is = replace(table)  # its ranges and tablets may be replaced meanwhile
        if window.num_rows <= self._limits.batch_rows:
            return _by_tablet(as_it_is, window, first)
        return await self._env.tasks.run(Lane.COMPUTE, _by_tablet, as_it_is, window, first)


def _window_rows(table: OpenTable, batch: pa.RecordBatch, limits: BatchLimits) -> int:
    """Return how many rows make about one batch per tablet; a little less, since parts are uneven.

    Less too if the windows of a table of many tablets would take more memory than `ahead_bytes`.

    Args:
        table: whose tablets.
        batch: the rows.
        limits: limits of a request and of a call.
    """
    each = _batch_rows(batch, limits)
    tablets = table.partition_schema.count
    most = limits.ahead_bytes // (MAX_WINDOWS + 1) // _row_bytes(batch)  # one more waits
    return max(1, min(most, each if tablets == 1 else each * tablets * 15 // 16))


def _batch_rows(batch: pa.RecordBatch, limits: BatchLimits) -> int:
    return max(1, min(limits.batch_rows, limits.batch_bytes // _row_bytes(batch)))


def _row_bytes(batch: pa.RecordBatch) -> int:
    """Return the average size of a row."""
    size: int = max(1, batch.nbytes // max(1, batch.num_rows))
    return size


def _by_tablet(
    table: OpenTable, batch: pa.RecordBatch, first: int
) -> tuple[list[TabletRows], RowErrors]:
    """Group rows by tablet, in order; rows with a null key or outside every partition become errors.

    Args:
        table: whose tablets.
        batch: a window of a write.
        first: position of its first row in the write.
    """
    errors: RowErrors = []
    rows = np.arange(first, first + batch.num_rows, dtype=np.int64)
    keys = [batch.column(c.name) for c in table.schema.key_columns]
    if any(k.null_count for k in keys):
        missing = np.logical_or.reduce([k.is_null().to_numpy(zero_copy_only=False) for k in keys])
        errors += [(int(r), "null_key", "a key column is null") for r in rows[missing]]
        rows = rows[~missing]
        batch = batch.filter(pa.array(~missing))
    if not batch.num_rows:
        return [], errors
    if table.partition_schema.count == 1 and table.partition_schema.ranges == ():
        return [TabletRows(table.tablets[0], rows, batch)], errors
    numbers = locate(table.schema, table.partition_schema, batch)
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    parts: list[TabletRows] = []
    for of_tablet in np.split(order, cuts):
        number = int(numbers[of_tablet[0]])
        if number >= 0:
            parts.append(
                TabletRows(table.tablets[number], rows[of_tablet], batch.take(pa.array(of_tablet)))
            )
        else:
            text = f"no range partition of table {table.name!r} covers this key"
            errors += [(int(r), NO_PARTITION, text) for r in rows[of_tablet]]
    return parts, errors


def cut_batch(
    batch: pa.RecordBatch, limits: BatchLimits, most: int
) -> list[tuple[int, pa.RecordBatch]]:
    """Cut a batch into pieces of about the limits.

    Args:
        batch: rows of one tablet.
        limits: limits of a piece, by the average size of a row.
        most: bytes that a piece of two or more rows never exceeds.

    Returns:
        Position of the first row, and the piece.
    """
    step = _batch_rows(batch, limits)
    pieces = []
    todo = [(at, batch.slice(at, step)) for at in range(0, batch.num_rows, step)]
    todo.reverse()
    while todo:
        at, piece = todo.pop()
        if piece.num_rows > 1 and piece.nbytes > most:  # many large rows
            half = piece.num_rows // 2
            todo += [(at + half, piece.slice(half)), (at, piece.slice(0, half))]
        else:
            pieces.append((at, piece))
    return pieces
