"""Writes of one client: small ones are coalesced, larger ones are cut into batches (`batcher.py`)."""

from collections.abc import Callable

import pyarrow as pa

from nyala.client.caller import Caller, OnLoop, closed_meanwhile
from nyala.client.cluster.tablet_cache import OpenTable, TabletCache, TabletLocation
from nyala.client.deadline import Attempts
from nyala.client.write import coalescer, request_size
from nyala.client.write.batcher import Batcher, BatchLimits
from nyala.client.write.delivery import Delivery
from nyala.client.write.pending_call import Call, Written
from nyala.client.write.put_streams import PutStreams
from nyala.client.write.sequencer import Sequencer, Sequences
from nyala.client.write.staging import StageSession
from nyala.client.write.upload import Upload
from nyala.env.clock import HybridClock
from nyala.env.env import Env
from nyala.env.tasks import ClosedDuringCall
from nyala.wire.proto import nyala_pb2 as pb

__all__ = ["BatchLimits", "Writer"]


class Writer:
    """Writes of one client. Runs on the client's loop."""

    def __init__(
        self,
        env: Env,
        client_id: bytes,
        locations: TabletCache,
        clock: HybridClock,
        limits: BatchLimits,
        *,
        keep_results: bool,
        since: int = 0,
    ) -> None:
        self._env = env
        self._on_loop = OnLoop(env.tasks)
        self._clock = clock
        self.streams = PutStreams(env)
        self.sequences = Sequences(keep_results=keep_results)
        self._requests = Sequencer(
            client_id,
            self.sequences,
            Delivery(locations, clock, self.streams),
            since if keep_results else None,
        )
        self._bulk = Batcher(env, self._requests, clock, limits, locations)
        self.staging = StageSession(env, locations, clock, limits, self.streams)
        # A process that repeats another's writes has to form the same requests.
        self._may_combine = not keep_results
        self.combiner = coalescer.Coalescer(
            env, self._deliver_many, self._write_alone,
            max_rows=limits.batch_rows, max_bytes=limits.batch_bytes,
        )  # fmt: skip

    def small(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, *,
        all_or_nothing: bool, timeout_ms: int, on_done: Callable[[], None],
    ) -> Call | None:  # fmt: skip
        """Return a write as a call for `combiner.take` if it may share a request. Any thread.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            batch: the rows, by column name.
            all_or_nothing: one failing row voids the others of its request.
            timeout_ms: deadline, from now.
            on_done: called once on the loop, when there is an outcome.
        """
        if all_or_nothing or not self._may_combine or batch.num_rows > coalescer.MAX_ROWS:
            return None
        size = batch.nbytes
        if size > request_size.max_row_bytes(table, batch.num_columns, coalescer.MAX_BYTES):
            return None
        deadline_us = self._env.clock.monotonic_us() + timeout_ms * 1000
        return Call(table, op, batch, size, deadline_us, on_done)

    async def write(
        self, table: OpenTable, op: int, batch: pa.RecordBatch, *,
        all_or_nothing: bool, timeout_ms: int, caller: Caller | None = None,
    ) -> Written:  # fmt: skip
        """Write one batch of rows whose columns have the table's types.

        A small batch may share a request with those of other callers.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire; MIXED: the last column, uint8 `_op`, gives each row's.
            batch: columns by name, every key column among them.
            all_or_nothing: per tablet and batch of `BatchLimits`: one failing row voids the rest.
            timeout_ms: maximum time between two acknowledged batches.
            caller: makes the call; None: a coroutine on the loop.

        Raises:
            PartlyWritten: some rows are acknowledged, or may have taken effect, others not.
            OutcomeUnknown: all rows went in one request, and it may have taken effect.
            NyalaError: nothing took effect.
        """
        caller = caller or self._on_loop
        done = caller.signal()
        call = self.small(
            table, op, batch, all_or_nothing=all_or_nothing, timeout_ms=timeout_ms, on_done=done.set
        )
        if call is None:
            bulk = self._bulk.write(table, op, batch, all_or_nothing, timeout_ms)
            return await caller.change(bulk)
        try:
            caller.hand_over(self.combiner.take, call)
            await done.wait()
        except ClosedDuringCall as err:
            raise closed_meanwhile(sent=call.sent) from err
        finally:
            call.over = True  # also when interrupted or cancelled: rows not sent yet are dropped
        return call.outcome()

    async def begin(
        self, table: OpenTable, op: int, *, all_or_nothing: bool, timeout_ms: int
    ) -> Upload:
        """Begin a write whose rows come batch by batch; arguments as for `write`.

        Args:
            table: the open table.
            op: a `WriteOp` of the wire.
            all_or_nothing: one failing row voids the others of its request.
            timeout_ms: deadline, from now.
        """
        return self._bulk.begin(table, op, all_or_nothing, timeout_ms)

    async def _write_alone(self, call: Call) -> Written:
        left_ms = (call.deadline_us - self._env.clock.monotonic_us()) // 1000
        return await self._bulk.write(call.table, call.op, call.batch, False, left_ms)

    async def _deliver_many(
        self, tablet: TabletLocation, like: Call, batch: pa.RecordBatch, deadline_us: int
    ) -> pb.WriteResult:
        left_ms = (deadline_us - self._env.clock.monotonic_us()) // 1000
        attempts = Attempts(self._env, left_ms)
        result = await self._requests.deliver(like.table, tablet, like.op, batch, False, attempts)
        self._clock.merge(result.timestamp)
        return result
