"""One write of many rows: accepted batch by batch, grouped by tablet, each group sent until answered.

Order: the batches of one write to one tablet are sent one after the other, so that rows of one key take
effect in the given order. Different tablets, and different writes, are sent concurrently. While servers
execute some windows the next one is prepared.

Memory: at most `MAX_WINDOWS` windows are in flight, and `take` returns only when less than one more waits.
Time: the deadline counts from the last acknowledged batch, so that a load of any length succeeds as long as
it makes progress. Otherwise requests in flight are ended, and the error has the outcome of each row.
"""

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from nyala.client.caller import closed_meanwhile
from nyala.client.cluster.tablet_cache import OpenTable, TabletLocation
from nyala.client.deadline import Attempts
from nyala.client.write import request_size
from nyala.client.write.pending_call import Written
from nyala.client.write.row_outcomes import Outcomes, RowErrors, Rows, Window, with_voided
from nyala.common.errors import NyalaError, RangesChanged, TimedOut, has_no_effect
from nyala.common.partitioning.partition import TabletPartition
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

MAX_WINDOWS = 3
"""Maximum number of windows in flight; one more is being prepared."""


@dataclass(frozen=True, slots=True, eq=False)
class TabletRows:
    """The rows of one window for one tablet.

    Attributes:
        tablet: tablet of the rows.
        rows: positions in the write, in order.
        batch: batch of these rows.
    """

    tablet: TabletLocation
    rows: Rows
    batch: pa.RecordBatch


@dataclass(slots=True)
class _Partition:
    """Order of one write's requests to one partition: one at a time, and none after a failed one.

    Not a `RequestQueue`, which puts callers into shared requests, two of them in flight. These requests are
    cut before they wait, and a second one in flight could overtake the first, whose rows take effect before.
    The partition's tablet may be replaced by another one meanwhile.

    Attributes:
        turn: held while the rows of one window are sent.
        failed: a request failed, or is in flight.
    """

    turn: asyncio.Lock
    failed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """One write call.

    Attributes:
        table: the open table.
        op: a `WriteOp` of the wire.
        all_or_nothing: one failing row voids the others of its request.
        attempts: its deadline.
        partitions: the requests to each partition.
    """

    table: OpenTable
    op: int
    all_or_nothing: bool
    attempts: Attempts
    partitions: dict[TabletPartition, _Partition] = field(default_factory=dict)


class RowGrouper(Protocol):
    """Grouping of rows by tablet."""

    def window_rows(self, table: OpenTable, batch: pa.RecordBatch) -> int:
        """Return how many rows of a batch like this are grouped at a time."""
        ...

    def pieces(self, table: OpenTable, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        """Split the rows of one tablet into requests; return (first row, piece)."""
        ...

    async def group(
        self, call: Writing, window: pa.RecordBatch, first: int
    ) -> tuple[list[TabletRows], RowErrors]:
        """Group rows by tablet; return also the errors of rows without a tablet.

        Args:
            call: the write that the rows belong to.
            window: consecutive rows of a write.
            first: position of the first row in the write.
        """
        ...

    async def regroup(
        self, call: Writing, window: pa.RecordBatch, first: int
    ) -> tuple[list[TabletRows], RowErrors]:
        """As `group`, after a look-up of the tablets.

        Args:
            call: the write that the rows belong to.
            window: consecutive rows of a write.
            first: position of the first row in the write.
        """
        ...


class RowSender(Protocol):
    """Sender of the requests of one client: they take effect, or are staged."""

    async def deliver(
        self, table: OpenTable, tablet: TabletLocation, op: int, piece: pa.RecordBatch, all_or_nothing: bool,
        attempts: Attempts,
    ) -> pb.WriteResult:  # fmt: skip
        """Send one request until it is answered.

        Args:
            table: the open table.
            tablet: tablet of the rows.
            op: a `WriteOp` of the wire.
            piece: the rows of one request.
            all_or_nothing: one failing row voids the others.
            attempts: the deadline and the pauses between tries.
        """
        ...


class Upload:
    """A write in progress. Made by `Batcher.begin`; on the client's loop only.

    Args:
        env: tasks.
        groups: groups rows by tablet.
        requests: number and deliver each batch.
        clock: merges the stamps of the writes.
        call: the write.
    """

    def __init__(
        self, env: Env, groups: RowGrouper, requests: RowSender, clock: HybridClock, call: Writing
    ) -> None:
        self._env = env
        self._groups = groups
        self._requests = requests
        self._clock = clock
        self._call = call
        self._waiting: deque[pa.RecordBatch] = deque()
        self._ended = False
        self._ranges = call.table.ranges_version
        self._windows: dict[Window, asyncio.Task[object]] = {}
        self._outcomes = Outcomes()
        self._failures: list[BaseException] = []
        self._change = asyncio.Event()
        self._pump = env.tasks.spawn(self._run(), "write of many rows")
        self._pump.add_done_callback(lambda _: self._changed())

    async def take(self, batch: pa.RecordBatch) -> None:
        """Accept rows; returns when there is room for more.

        Raises:
            TooLarge: a row does not fit into any request; the rows before its batch are written.
            NyalaError: as `finish`.
        """
        await _check(self, batch)
        if batch.num_rows:
            self._waiting.append(batch)
            self._changed()
        while not self._over and self._waiting and self._is_full():
            await self._change.wait()
        if self._over:
            await self.finish()

    async def finish(self) -> Written:
        """Wait until every row taken is acknowledged.

        Raises:
            PartlyWritten: some rows are acknowledged, or may have taken effect, others not.
            OutcomeUnknown: all rows went in one request, and it may have taken effect.
            NyalaError: nothing took effect.
        """
        self._ended = True
        self._changed()
        await asyncio.gather(self._pump, *self._windows.values(), return_exceptions=True)
        if self._pump.cancelled():
            raise self.closed_error()
        if (error := self._pump.exception()) is not None:
            self._failures.append(error)
        if self._failures:
            raise self._outcomes.error(min(self._failures, key=error_rank))
        written = self._outcomes.written
        self._clock.merge(written.timestamp)
        written.errors.sort()
        return written

    async def stop(self, why: BaseException) -> BaseException:
        """Write the rows accepted so far after the input has failed; return the error to raise."""
        try:
            await self.finish()
        except NyalaError as err:
            return err
        return self._outcomes.error(why)

    async def interrupt(self, why: BaseException) -> BaseException:
        """End the requests in flight, whose outcome is unknown then; return the error with each row's."""
        self.abandon()
        await asyncio.gather(self._pump, *self._windows.values(), return_exceptions=True)
        return self._outcomes.error(why)

    def closed_error(self) -> BaseException:
        """Return the error to raise when the client was closed and its loop has ended."""
        return self._outcomes.error(closed_meanwhile(sent=bool(self._outcomes.requests)))

    def abandon(self) -> None:
        """Cancel the requests in flight: the caller has gone."""
        for task in (self._pump, *self._windows.values()):
            task.cancel()

    @property
    def _over(self) -> bool:
        """True if no further rows are sent."""
        return bool(self._failures) or self._pump.done()

    # ---- windows -----------------------------------------------------------------------------------

    def _is_full(self) -> bool:
        """Return whether the waiting rows fill a window."""
        head = self._waiting[0]
        step = 1 if self._call.all_or_nothing else self._groups.window_rows(self._call.table, head)
        return int(sum(b.num_rows for b in self._waiting)) >= step

    def _changed(self) -> None:
        """Notify the tasks that wait for a change."""
        self._change.set()
        self._change = asyncio.Event()

    async def _run(self) -> None:
        """Send windows until all rows are sent, or until the first failure."""
        while True:
            if not self._failures and self._waiting and len(self._windows) < MAX_WINDOWS:
                await self._launch()
            elif not self._windows and (self._failures or (self._ended and not self._waiting)):
                return
            else:
                await self._change.wait()

    async def _launch(self) -> None:
        """Group the rows of the next window and start sending them."""
        call, batch = self._call, self._next()
        ranges = call.table.ranges_version
        try:
            parts, errors = await self._groups.group(call, batch, self._outcomes.rows)
        except Exception as err:  # any error is raised to the caller
            self._failures.append(err)
            return
        same = ranges == call.table.ranges_version == self._ranges
        while self._windows and not same:
            await self._change.wait()  # rows of one key may move: keep their order
        self._ranges = ranges  # those of these rows; the table may have newer ones by now
        void = bool(errors) and call.all_or_nothing
        window = self._outcomes.window(batch.num_rows, errors, void=void)
        parts = [] if void else parts
        if not self._windows:  # time without anything to send does not count
            call.attempts.progressed()
        self._windows[window] = self._env.tasks.spawn(self._send_all(window, parts), "rows")

    def _next(self) -> pa.RecordBatch:
        """Return the rows of the next window; small batches are combined."""
        head = self._waiting.popleft()
        if self._call.all_or_nothing:
            return head
        step = max(1, self._groups.window_rows(self._call.table, head))
        if head.num_rows > step:
            self._waiting.appendleft(head.slice(step))
            return head.slice(0, step)
        together, rows = [head], head.num_rows
        while self._waiting:
            more = self._waiting[0]
            if rows + more.num_rows > step or not more.schema.equals(head.schema):
                break
            together.append(self._waiting.popleft())
            rows += more.num_rows
        self._changed()  # there may be room now
        return head if len(together) == 1 else pa.concat_batches(together)

    async def _send_all(self, window: Window, parts: list[TabletRows]) -> None:
        sending = (self._send(window, part) for part in parts)
        try:
            results = await asyncio.gather(*sending, return_exceptions=True)
            self._failures += [r for r in results if isinstance(r, BaseException)]
        finally:
            del self._windows[window]
            self._outcomes.close_window(window)
            self._changed()

    async def _send(self, window: Window, part: TabletRows) -> None:
        """Send the rows of one tablet, after those of earlier windows for its partition."""
        line = self._call.partitions.setdefault(part.tablet.partition, _Partition(asyncio.Lock()))
        async with line.turn:
            await self._send_batches(window, part, line)

    async def _send_batches(self, window: Window, part: TabletRows, line: _Partition) -> None:
        call, outcomes = self._call, self._outcomes
        for start, piece in self._groups.pieces(call.table, part.batch):
            if line.failed:
                return
            line.failed = True  # until it is known that it did not
            rows = part.rows[start : start + piece.num_rows]
            outcomes.sent(window, rows)
            try:
                result = await self._requests.deliver(
                    call.table, part.tablet, call.op, piece, call.all_or_nothing, call.attempts
                )
            except NyalaError as err:
                outcomes.failed(window, rows, err)
                if not isinstance(err, RangesChanged):
                    raise
                await self._send_elsewhere(window, TabletRows(part.tablet, rows, piece), line)
                continue
            line.failed = False
            outcomes.acknowledged(window, rows, result, whole=call.all_or_nothing)
            call.attempts.progressed()

    async def _send_elsewhere(self, window: Window, part: TabletRows, line: _Partition) -> None:
        """Send rows whose tablet was retired to the tablets that have their ranges now."""
        call = self._call
        if not await call.attempts.pause():
            raise TimedOut(
                f"the ranges of table {call.table.name!r} changed at every try; the rows of the last request "
                "had no effect; write them again"
            )
        parts, placed = await self._groups.regroup(call, part.batch, 0)
        errors = [(int(part.rows[r]), code, why) for r, code, why in placed]
        line.failed = False
        if errors and call.all_or_nothing:
            self._outcomes.refused(window, with_voided(part.rows, errors))
            return
        self._outcomes.refused(window, errors)
        for other in parts:
            moved = TabletRows(other.tablet, part.rows[other.rows], other.batch)
            await self._send_batches(window, moved, line)


async def _check(upload: Upload, batch: pa.RecordBatch) -> None:
    """End a write with a row that does not fit into any request, before its batch is sent."""
    why = request_size.refusal(upload._call.table, batch, upload._outcomes.rows, upload._waiting)
    if why is not None:
        raise await upload.stop(why)


def error_rank(failure: BaseException) -> int:
    """Return the rank of an error: an unknown outcome comes before any failure without effect."""
    return int(has_no_effect(failure))
