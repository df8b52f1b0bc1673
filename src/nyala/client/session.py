"""Writes: rows grouped by tablet, each group sent to its leader until it answers, once and only once.

Order: the batches of one write that fall into one tablet are sent one after the other, so that rows of
one key take effect in the order given. Different tablets, and different writes, go side by side.
"""

import asyncio
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import pyarrow as pa

from nyala.client.delivery import Delivery
from nyala.client.locations import Locations, OpenTable, TabletPlace
from nyala.client.retrying import Attempts
from nyala.client.streams import PutStreams
from nyala.common.errors import OutcomeUnknown
from nyala.common.ids import ColumnId, TabletId
from nyala.common.partition import locate
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

OP_COLUMN = "_op"


@dataclass(frozen=True, slots=True)
class Limits:
    """How a write is cut into batches (design section 18)."""

    batch_rows: int = 10_000
    batch_bytes: int = 1 << 20


@dataclass(slots=True)
class Written:
    """What became of a write: rows without an error, (row, code, message) of the others, last stamp."""

    rows: int = 0
    errors: list[tuple[int, str, str]] = field(default_factory=list)
    timestamp: int = 0


class Sequences:
    """Numbers the operations of one client per tablet, and knows which are still outstanding.

    Args:
        keep_results: never tell a tablet that results may be dropped, so that a second process with
            the same client id can repeat all operations (a retried Spark task).
    """

    def __init__(self, *, keep_results: bool) -> None:
        self._keep_results = keep_results
        self._last: dict[TabletId, int] = {}
        self._outstanding: dict[TabletId, dict[int, None]] = {}

    def begin(self, tablet: TabletId) -> tuple[int, int]:
        """Return (sequence, first outstanding sequence) for a new operation."""
        sequence = self._last[tablet] = self._last.get(tablet, 0) + 1
        outstanding = self._outstanding.setdefault(tablet, {})
        outstanding[sequence] = None
        return sequence, 1 if self._keep_results else next(iter(outstanding))

    def end(self, tablet: TabletId, sequence: int) -> None:
        """The operation's result was received, or its caller gave up."""
        self._outstanding[tablet].pop(sequence, None)


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
        self._client_id = client_id
        self._clock = clock
        self._limits = limits
        self._sequences = Sequences(keep_results=keep_results)
        self.streams = PutStreams(env)
        self._delivery = Delivery(locations, clock, self.streams)

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
        column_ids = [table.schema.column(n).id for n in mine.schema.names if n != OP_COLUMN]
        total = Written()
        for start, piece in _slices(mine, self._limits):
            header = self._header(table, tablet, op, column_ids, all_or_nothing)
            try:
                result = await self._delivery.send(table, tablet, header, piece, attempts)
            finally:
                self._sequences.end(tablet.id, header.sequence)
            total.rows += result.rows
            total.timestamp = max(total.timestamp, result.timestamp)
            for error in result.row_errors:
                at = start + error.row
                total.errors.append(
                    (int(at if rows is None else rows[at]), error.code, error.message)
                )
        return total

    def _header(
        self,
        table: OpenTable,
        tablet: TabletPlace,
        op: int,
        column_ids: list[ColumnId],
        whole: bool,
    ) -> pb.WriteHeader:
        sequence, first = self._sequences.begin(tablet.id)
        return pb.WriteHeader(
            tablet_id=tablet.id,
            schema_version=table.schema.version,
            op=cast("pb.WriteOp.ValueType", op),
            client_id=self._client_id,
            sequence=sequence,
            first_outstanding=first,
            all_or_nothing=whole,
            column_ids=column_ids,
        )


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
