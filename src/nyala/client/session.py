"""Writes: rows grouped by tablet, each group sent to its leader until it answers, once and only once.

Order: the batches of one write that fall into one tablet are sent one after the other, so that rows of
one key take effect in the order given. Different tablets, and different writes, go side by side.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from nyala.client import combining
from nyala.client.calls import Call, Written
from nyala.client.delivery import Delivery
from nyala.client.locations import Locations, OpenTable, TabletPlace
from nyala.client.requests import Requests, Sequences
from nyala.client.retrying import Attempts
from nyala.client.streams import PutStreams
from nyala.common.errors import OutcomeUnknown
from nyala.common.partition import locate
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb


@dataclass(frozen=True, slots=True)
class Limits:
    """How a write is cut into batches (design section 18)."""

    batch_rows: int = 10_000
    batch_bytes: int = 1 << 20


class Session:
    """Sends the writes of one client. Runs on the client's loop."""

    def __init__(
        self,
        env: Env,
        client_id: bytes,
        locations: Locations,
        clock: HybridClock,
        limits: Limits,
        *,
        keep_results: bool,
    ) -> None:
        self._env = env
        self._clock = clock
        self._limits = limits
        self.streams = PutStreams(env)
        self._requests = Requests(
            client_id,
            Sequences(keep_results=keep_results),
            Delivery(locations, clock, self.streams),
        )
        # A process that repeats another's writes has to make the same requests of them.
        self._may_combine = not keep_results
        self.combiner = combining.Combiner(
            env, self._deliver_many, self._write_alone,
            max_rows=limits.batch_rows, max_bytes=limits.batch_bytes,
        )  # fmt: skip

    def small(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, *,
        all_or_nothing: bool, timeout_ms: int, tell: Callable[[], None],
    ) -> Call | None:  # fmt: skip
        """Return a write as a call for `combiner.take` if it may share a request. Any thread."""
        if all_or_nothing or not self._may_combine or batch.num_rows > combining.MAX_ROWS:
            return None
        size = batch.nbytes
        if size > combining.MAX_BYTES:
            return None
        deadline_us = self._env.clock.monotonic_us() + timeout_ms * 1000
        return Call(table, op, batch, size, deadline_us, tell)

    async def write(
        self,
        table: OpenTable,
        op: int,
        batch: pa.RecordBatch,
        *,
        all_or_nothing: bool,
        timeout_ms: int,
    ) -> Written:
        """Write one batch of rows whose columns have the table's types.

        Args:
            table: where to.
            op: a `WriteOp` of the wire; MIXED: the last column, uint8 `_op`, gives each row's.
            batch: columns by name, every key column among them.
            all_or_nothing: per tablet and batch of `Limits`: one failing row voids the rest.
            timeout_ms: for the whole write.

        Raises:
            OutcomeUnknown: the deadline passed with a try under way that may still take effect.
            TimedOut: the deadline passed and the last batch surely had no effect.
            NyalaError: the write was refused.
        """
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = self.small(
            table, op, batch, all_or_nothing=all_or_nothing, timeout_ms=timeout_ms,
            tell=lambda: None if told.done() else told.set_result(None),
        )  # fmt: skip
        if call is None:
            return await self._write_whole(table, op, batch, all_or_nothing, timeout_ms)
        self.combiner.take(call)
        try:
            await told
        finally:
            call.over = True  # also when this caller is cancelled: what was not sent stays here
        return call.outcome()

    async def _write_alone(self, call: Call) -> Written:
        left_ms = (call.deadline_us - self._env.clock.monotonic_us()) // 1000
        return await self._write_whole(call.table, call.op, call.batch, False, left_ms)

    async def _write_whole(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, all_or_nothing: bool,
        timeout_ms: int,
    ) -> Written:  # fmt: skip
        written = Written()
        attempts = Attempts(self._env, timeout_ms)
        groups = _by_tablet(table, batch, written)
        if written.errors and all_or_nothing:
            written.errors.sort()
            return written
        results = await asyncio.gather(
            *(
                self._write_tablet(
                    table, table.tablets[number], op, rows, batch, all_or_nothing, attempts
                )
                for number, rows in groups
            ),
            return_exceptions=True,
        )
        for result in sorted(results, key=_gravity):
            if isinstance(result, BaseException):
                raise result
            written.rows += result.rows
            written.errors += result.errors
            written.timestamp = max(written.timestamp, result.timestamp)
        written.errors.sort()
        self._clock.merge(written.timestamp)
        return written

    async def _write_tablet(
        self, table: OpenTable, tablet: TabletPlace, op: int, rows: np.ndarray | None,
        batch: pa.RecordBatch, all_or_nothing: bool, attempts: Attempts,
    ) -> Written:  # fmt: skip
        mine = batch if rows is None else batch.take(pa.array(rows))
        total = Written()
        for start, piece in _slices(mine, self._limits):
            result = await self._requests.deliver(
                table, tablet, op, piece, all_or_nothing, attempts
            )
            total.rows += result.rows
            total.timestamp = max(total.timestamp, result.timestamp)
            for error in result.row_errors:
                at = start + error.row
                total.errors.append(
                    (int(at if rows is None else rows[at]), error.code, error.message)
                )
        return total

    async def _deliver_many(
        self, tablet: TabletPlace, like: Call, batch: pa.RecordBatch, deadline_us: int
    ) -> pb.WriteResult:
        left_ms = (deadline_us - self._env.clock.monotonic_us()) // 1000
        attempts = Attempts(self._env, left_ms)
        result = await self._requests.deliver(like.table, tablet, like.op, batch, False, attempts)
        self._clock.merge(result.timestamp)
        return result


def _by_tablet(
    table: OpenTable, batch: pa.RecordBatch, written: Written
) -> list[tuple[int, np.ndarray | None]]:
    """Group rows by tablet, in order; rows with a null key or outside every partition become errors."""
    rows: np.ndarray | None = None
    keys = [batch.column(c.name) for c in table.schema.key_columns]
    if any(k.null_count for k in keys):
        missing = np.logical_or.reduce([k.is_null().to_numpy(zero_copy_only=False) for k in keys])
        written.errors += [
            (int(r), "null_key", "a key column is null") for r in np.flatnonzero(missing)
        ]
        rows = np.flatnonzero(~missing)
        batch = batch.take(pa.array(rows))
    if not batch.num_rows:
        return []
    if table.partition_schema.count == 1 and table.partition_schema.ranges == ():
        return [(0, rows)]
    numbers = locate(table.schema, table.partition_schema, batch)
    order = np.argsort(numbers, kind="stable")
    groups: list[tuple[int, np.ndarray | None]] = []
    for part in np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1):
        number, mine = int(numbers[part[0]]), part if rows is None else rows[part]
        if number >= 0:
            groups.append((number, mine))
        else:
            text = f"no range partition of table {table.name!r} covers this key"
            written.errors += [(int(r), "no_partition", text) for r in mine]
    return groups


def _gravity(result: Written | BaseException) -> int:
    """What is told first: that an outcome is unknown, which no other failure may hide."""
    if isinstance(result, OutcomeUnknown):
        return 0
    return 1 if isinstance(result, BaseException) else 2


def _slices(batch: pa.RecordBatch, limits: Limits) -> list[tuple[int, pa.RecordBatch]]:
    """Cut a batch into pieces within the limits, a row at least; return (first row, piece)."""
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    step = max(1, min(limits.batch_rows, limits.batch_bytes // per_row))
    pieces = []
    todo = [(at, batch.slice(at, step)) for at in range(0, batch.num_rows, step)]
    todo.reverse()
    while todo:
        at, piece = todo.pop()
        if piece.num_rows > 1 and piece.nbytes > 2 * limits.batch_bytes:  # large rows side by side
            half = piece.num_rows // 2
            todo += [(at + half, piece.slice(half)), (at, piece.slice(0, half))]
        else:
            pieces.append((at, piece))
    return pieces
