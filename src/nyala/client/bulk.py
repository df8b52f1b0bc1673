"""Writes of many rows: window by window grouped by tablet, each group sent to its leader until it answers.

Order: the batches of one write that fall into one tablet are sent one after the other, so that rows of
one key take effect in the order given. Different tablets, and different writes, go side by side. While
servers work on some windows the next one is made ready: nobody waits for a whole table to be grouped.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from nyala.client.calls import Written
from nyala.client.locations import OpenTable, TabletPlace
from nyala.client.requests import Requests
from nyala.client.retrying import Attempts
from nyala.common.errors import OutcomeUnknown, Retryable
from nyala.common.partition import Partition, locate
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.tasks import Lane

NO_PARTITION = "no_partition"
AHEAD = 3
"""Windows under way at a time; one more is being made ready."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How a write is cut into batches."""

    batch_rows: int = 10_000
    batch_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The rows of one window that fall into one tablet.

    Attributes:
        tablet: where they go.
        rows: positions in the write, in order.
        batch: of these rows.
    """

    tablet: TabletPlace
    rows: npt.NDArray[np.int64]
    batch: pa.RecordBatch


@dataclass(slots=True)
class _Line:
    """What one write sends to one part of the table: one request after the other, none after one that failed.

    Its tablet may be replaced by another one meanwhile.
    """

    turn: asyncio.Lock
    failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Write:
    """One call of a user."""

    table: OpenTable
    op: int
    whole: bool
    attempts: Attempts
    lines: dict[Partition, _Line]


RowErrors = list[tuple[int, str, str]]


class Bulk:
    """Sends the large writes of one client. Runs on the client's loop.

    Args:
        env: clock and lanes.
        requests: number and deliver each batch.
        clock: learns the stamps of what was written.
        limits: of one batch.
        refresh: looks a table's ranges up again when some row has no place; None: never.
    """

    def __init__(
        self,
        env: Env,
        requests: Requests,
        clock: HybridClock,
        limits: Limits,
        refresh: Callable[[OpenTable], Awaitable[None]] | None = None,
    ) -> None:
        self._env = env
        self._requests = requests
        self._clock = clock
        self._limits = limits
        self._refresh = refresh

    async def write(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, all_or_nothing: bool,
        timeout_ms: int,
    ) -> Written:  # fmt: skip
        """See `Session.write`."""
        call = _Write(table, op, all_or_nothing, Attempts(self._env, timeout_ms), {})
        written, failures = Written(), list[BaseException]()
        under_way: deque[asyncio.Future[list[Written | BaseException]]] = deque()
        step = batch.num_rows if all_or_nothing else _window_rows(table, batch, self._limits)
        try:
            for first in range(0, batch.num_rows, max(1, step)):
                if len(under_way) == AHEAD:
                    failures += _add(written, await under_way.popleft())
                if failures:
                    break
                parts, errors = await self._group(table, batch.slice(first, step), first)
                written.errors += errors
                if errors and all_or_nothing:
                    break
                work = (self._send(call, part) for part in parts)
                under_way.append(asyncio.gather(*work, return_exceptions=True))
            while under_way:
                failures += _add(written, await under_way.popleft())
        finally:  # also when this caller is cancelled
            for one in under_way:
                one.cancel()
        if failures:
            raise min(failures, key=_gravity)
        written.errors.sort()
        self._clock.merge(written.timestamp)
        return written

    async def _group(
        self, table: OpenTable, window: pa.RecordBatch, first: int
    ) -> tuple[list[_Part], RowErrors]:
        """Group rows by tablet; before a row is told that it has no place, the ranges are looked up."""
        parts, errors = await self._cut(table, window, first)
        if self._refresh is None or all(code != NO_PARTITION for _, code, _ in errors):
            return parts, errors
        known = table.partition_schema
        with contextlib.suppress(Retryable):
            await self._refresh(table)
        if table.partition_schema == known:
            return parts, errors
        return await self._cut(table, window, first)

    async def _cut(
        self, table: OpenTable, window: pa.RecordBatch, first: int
    ) -> tuple[list[_Part], RowErrors]:
        as_it_is = replace(table)  # its ranges and tablets may be replaced while this is under way
        if window.num_rows <= self._limits.batch_rows:
            return _by_tablet(as_it_is, window, first)
        return await self._env.tasks.run(Lane.COMPUTE, _by_tablet, as_it_is, window, first)

    async def _send(self, call: _Write, part: _Part) -> Written:
        """Send the rows of one part, after those of earlier ones for the same tablet."""
        tablet = part.tablet
        line = call.lines.setdefault(tablet.partition, _Line(asyncio.Lock()))
        total = Written()
        async with line.turn:
            for start, piece in _slices(part.batch, self._limits):
                if line.failed:
                    break
                line.failed = True  # until it is known that it did not
                result = await self._requests.deliver(
                    call.table, tablet, call.op, piece, call.whole, call.attempts
                )
                line.failed = False
                total.rows += result.rows
                total.timestamp = max(total.timestamp, result.timestamp)
                total.errors += [
                    (int(part.rows[start + e.row]), e.code, e.message) for e in result.row_errors
                ]
        return total


def _add(written: Written, results: list[Written | BaseException]) -> list[BaseException]:
    """Add what one window came to; return what failed in it."""
    failures: list[BaseException] = []
    for result in results:
        if isinstance(result, BaseException):
            failures.append(result)
        else:
            written.rows += result.rows
            written.errors += result.errors
            written.timestamp = max(written.timestamp, result.timestamp)
    return failures


def _window_rows(table: OpenTable, batch: pa.RecordBatch, limits: Limits) -> int:
    """Return how many rows make about one batch for each tablet; a little less, as parts are uneven."""
    each = _batch_rows(batch, limits)
    tablets = table.partition_schema.count
    return each if tablets == 1 else max(1, each * tablets * 15 // 16)


def _batch_rows(batch: pa.RecordBatch, limits: Limits) -> int:
    per_row: int = max(1, batch.nbytes // max(1, batch.num_rows))
    return max(1, min(limits.batch_rows, limits.batch_bytes // per_row))


def _by_tablet(
    table: OpenTable, batch: pa.RecordBatch, first: int
) -> tuple[list[_Part], RowErrors]:
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
        return [_Part(table.tablets[0], rows, batch)], errors
    numbers = locate(table.schema, table.partition_schema, batch)
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    parts: list[_Part] = []
    for mine in np.split(order, cuts):
        number = int(numbers[mine[0]])
        if number >= 0:
            parts.append(_Part(table.tablets[number], rows[mine], batch.take(pa.array(mine))))
        else:
            text = f"no range partition of table {table.name!r} covers this key"
            errors += [(int(r), NO_PARTITION, text) for r in rows[mine]]
    return parts, errors


def _gravity(failure: BaseException) -> int:
    """What is told first: that an outcome is unknown, which no other failure may hide."""
    return 0 if isinstance(failure, OutcomeUnknown) else 1


def _slices(batch: pa.RecordBatch, limits: Limits) -> list[tuple[int, pa.RecordBatch]]:
    """Cut a batch into pieces within the limits, a row at least; return (first row, piece)."""
    step = _batch_rows(batch, limits)
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
