"""Coalescing of small writes: rows of concurrent callers for one tablet are sent as one request.

An idle queue adds no delay: calls of one loop iteration are sent at its end. While a request is in flight,
further calls wait until they are as many as it carries, or until it is answered, and form the next request. A
request has one sequence number and the same bytes at each try. Each caller gets the outcome of its own rows.
A request ends at the earliest deadline of its callers: rows are not sent again after their caller has failed.
Used on the client's loop only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pyarrow as pa

from nyala.client.caller import closed_meanwhile
from nyala.client.cluster.tablet_cache import TabletLocation
from nyala.client.write import request_size
from nyala.client.write.pending_call import Call, Written
from nyala.client.write.queue import CallKind, CallQueue, Key
from nyala.client.write.waiting import CallDeadlines
from nyala.common.errors import NyalaError, RangesChanged, Rejected, SessionExpired
from nyala.common.partitioning.partition import locate
from nyala.env.env import Env
from nyala.wire.proto import nyala_pb2 as pb

MAX_ROWS = 64
MAX_BYTES = 64 << 10
"""Maximum rows and bytes of a write that is coalesced: larger ones gain little, and others would wait for
them.
"""

Send = Callable[[TabletLocation, Call, pa.RecordBatch, int], Awaitable[pb.WriteResult]]
"""Deliver a batch of the same kind as a call; the last argument is the deadline (monotonic microseconds)."""


class Coalescer:
    """Small writes of one client.

    Args:
        env: clock and tasks.
        send: see `Send`.
        write_call: writes one call by itself; for rows without a single tablet.
        max_rows: largest number of rows of a request.
        max_bytes: largest size of a request, one call at least.
    """

    def __init__(
        self, env: Env, send: Send, write_call: Callable[[Call], Coroutine[Any, Any, Written]], *,
        max_rows: int, max_bytes: int,
    ) -> None:  # fmt: skip
        self._env = env
        self._send = send
        self._write_call = write_call
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._queues: dict[Key, CallQueue] = {}
        self._unplaced: dict[CallKind, list[Call]] = {}
        self._touched: dict[Key, CallQueue] = {}
        self._waiting = CallDeadlines(env.clock)
        self._placing_is_due = False

    def take(self, call: Call) -> None:
        """Queue a call; `Call.done` or `Call.failed` completes it."""
        self._waiting.add(call)
        table = call.table
        kind = CallKind(table.id, table.schema.version, call.op, tuple(call.batch.schema.names))
        if any(call.batch.column(c.name).null_count for c in table.schema.key_columns):
            self._write_alone(call)
        elif table.partition_schema.count == 1 and table.partition_schema.ranges == ():
            self._enqueue(call, kind, table.tablets[0])
        else:
            self._unplaced.setdefault(kind, []).append(call)
        if not self._placing_is_due:
            self._placing_is_due = True
            asyncio.get_running_loop().call_soon(self._place_calls)

    def close(self) -> None:
        """Fail every pending call: the client is closed."""
        self._waiting.close()

    # ---- queues ------------------------------------------------------------------------------------

    def _place_calls(self) -> None:
        """Assign the calls of a loop iteration to queues at its end, and send requests."""
        self._placing_is_due = False
        unplaced, self._unplaced = self._unplaced, {}
        for kind, calls in unplaced.items():
            self._place(kind, calls)
        touched, self._touched = self._touched, {}
        for key, queue in touched.items():
            self._send_ready(key, queue)

    def _place(self, kind: CallKind, calls: list[Call]) -> None:
        """Find the tablet of each call's rows, for all calls at once."""
        table = calls[0].table
        keys = pa.concat_batches([c.batch for c in calls])
        numbers = locate(table.schema, table.partition_schema, keys).tolist()
        at = 0
        for call in calls:
            tablets = numbers[at : at + call.batch.num_rows]
            at += call.batch.num_rows
            if tablets[0] >= 0 and tablets.count(tablets[0]) == len(tablets):
                self._enqueue(call, kind, table.tablets[tablets[0]])
            else:
                self._write_alone(call)

    def _enqueue(self, call: Call, kind: CallKind, tablet: TabletLocation) -> None:
        key = tablet.id, kind
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = CallQueue(tablet)
        queue.tablet = tablet
        queue.requests.enqueue(call)
        self._touched[key] = queue

    def _send_ready(self, key: Key, queue: CallQueue) -> None:
        """Send the requests that may be sent now."""
        now_us = self._env.clock.monotonic_us()
        most = self._max_bytes
        if queue.requests.waiting:
            head = queue.requests.waiting[0]
            most = request_size.max_row_bytes(head.table, head.batch.num_columns, most)
        while calls := queue.take_batch(self._max_rows, most, now_us):
            self._env.tasks.spawn(self._request(key, queue, calls), "small writes")
        if queue.requests.idle:
            self._queues.pop(key, None)

    # ---- requests ----------------------------------------------------------------------------------

    async def _request(self, key: Key, queue: CallQueue, calls: list[Call]) -> None:
        try:
            await self._send_request(queue.tablet, calls)
        finally:
            for call in calls:  # over already, unless this task was cancelled
                self._waiting.drop(call)
                call.failed(closed_meanwhile(sent=call.sent))
            queue.requests.finished(calls)
            self._send_ready(key, queue)

    async def _send_request(self, tablet: TabletLocation, calls: list[Call]) -> None:
        """Send one request for some calls; each gets the outcome of its own rows."""
        batch = calls[0].batch
        if len(calls) > 1:
            batch = pa.concat_batches([c.batch for c in calls])
        for call in calls:
            call.sent = True
        deadline_us = min(c.deadline_us for c in calls)
        try:
            result = await self._send(tablet, calls[0], batch, deadline_us)
        except RangesChanged:  # the tablet was replaced, and applied none of these rows
            for call in calls:
                await self._run_alone(call)
        except Rejected as err:
            if len(calls) == 1 or isinstance(err, SessionExpired):
                _fail(calls, err)
                return
            # Nothing took effect: sending each call alone finds the one that is refused.
            await asyncio.gather(*(self._send_request(tablet, [c]) for c in calls))
        except Exception as err:  # any error ends the calls
            _fail(calls, err)
        else:
            _share(result, calls)

    def _write_alone(self, call: Call) -> None:
        self._waiting.drop(call)  # it has its own deadline
        self._env.tasks.spawn(self._run_alone(call), "write")

    async def _run_alone(self, call: Call) -> None:
        try:
            call.done(await self._write_call(call))
        except Exception as err:  # any error ends the call
            call.failed(err)
        finally:
            call.failed(closed_meanwhile(sent=True))


def _share(result: pb.WriteResult, calls: list[Call]) -> None:
    """Complete each call with its part of a result."""
    errors = sorted((e.row, e.code, e.message) for e in result.row_errors)
    first = at = 0
    for call in calls:
        end = first + call.batch.num_rows
        call_errors = []
        while at < len(errors) and errors[at][0] < end:
            row, code, message = errors[at]
            call_errors.append((row - first, code, message))
            at += 1
        call.done(Written(call.batch.num_rows - len(call_errors), call_errors, result.timestamp))
        first = end


def _fail(calls: list[Call], err: Exception) -> None:
    """Fail some calls, each with an error of its own."""
    for call in calls:
        call.failed(err.another() if isinstance(err, NyalaError) else err)
