"""SoonWrites: writes whose outcome is a future, for threads that do not wait for it."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from nyala.client.calls.rows import PreparedRows
from nyala.client.calls.writing import write_converted
from nyala.client.cluster.tablet_cache import OpenTable
from nyala.client.core import ClientCore
from nyala.client.results import WriteResult
from nyala.client.write.pending_call import Call
from nyala.client.write.staging import PartStage, StagingTarget
from nyala.client.write.watch import OnProgress
from nyala.common.errors import InvalidArgument
from nyala.common.values.casting import Requested
from nyala.env.loop_thread import CHECK_INTERVAL_S, LoopThread

log = logging.getLogger("nyala.client")

Soon = Future[WriteResult]


class SoonArguments(Requested, total=False):
    """Arguments of a write whose result is a future: those of every write, and `all_or_nothing`."""

    all_or_nothing: bool
    progress: bool | OnProgress
    stop: threading.Event | None
    txn: StagingTarget | None


class SoonWrites:
    """The writes of one client for which no thread waits. Any thread may call, also the loop's in a callback.

    They have at most `write_ahead_bytes` of rows together: a further one waits for room.

    Args:
        loop: runs the client.
        core: the client.
    """

    def __init__(self, loop: LoopThread, core: ClientCore) -> None:
        self._loop = loop
        self._core = core
        self._bytes = 0
        self._changed = threading.Condition()

    def write(self, table: OpenTable, rows: PreparedRows, stage: PartStage | None) -> Soon:
        """Begin a write, and return the future of its result; raises as `Table.upsert` about the rows.

        Args:
            table: written to.
            rows: the rows, in memory.
            stage: part of a transaction in which they are staged; None: they take effect.

        Raises:
            InvalidArgument: the rows are a stream, or the client is closed.
        """
        if not rows.in_memory:
            raise InvalidArgument(
                "a write whose result is a future takes rows in memory: a stream is read by the thread that "
                "writes it; call the method without _soon, or pass the stream piece by piece"
            )
        made = rows.converted()
        size = sum(batch.nbytes for batch in made)
        self._reserve(size)
        try:
            return self._begin(table, rows, made, stage, size)
        except BaseException:  # also when interrupted
            self._release(size)
            raise

    def _begin(
        self, table: OpenTable, rows: PreparedRows, made: list[pa.RecordBatch], stage: PartStage | None,
        size: int,
    ) -> Soon:  # fmt: skip
        core, future = self._core, Soon()
        if len(made) == 1 and not rows.watch.active and stage is None:
            begun: list[Call] = []
            call = core.session.small(
                table, rows.op, made[0], all_or_nothing=rows.all_or_nothing,
                timeout_ms=core.options.timeout_ms,
                on_done=lambda: self._complete(future, rows, begun[0], size),
            )  # fmt: skip
            if call is not None:
                begun.append(call)
                self._loop.hand_over(partial(self._take, size=size), (future, call))
                return future
        work = write_converted(core, core.caller, table, rows, made, stage)
        future = self._loop.begin(work)
        future.add_done_callback(lambda _: self._release(size))
        return future

    def _take(self, begun: tuple[Soon, Call], size: int) -> None:
        """Send a small write, unless its future was cancelled."""
        future, call = begun
        if future.set_running_or_notify_cancel():
            self._core.session.combiner.take(call)
        else:
            self._release(size)

    def _complete(self, future: Soon, rows: PreparedRows, call: Call, size: int) -> None:
        self._release(size)
        try:
            result = rows.result(call.outcome())
        except Exception as err:  # any error is that of the write
            _settle(partial(future.set_exception, err))
        else:
            _settle(partial(future.set_result, result))

    def _reserve(self, size: int) -> None:
        """Wait until there is room for more bytes; a callback does not wait, which would stop the client."""
        most = self._core.options.limits.ahead_bytes
        with self._changed:
            while (
                not self._loop.is_current
                and self._bytes
                and self._bytes + size > most
                and not self._loop.closed
            ):
                self._changed.wait(CHECK_INTERVAL_S)
            self._bytes += size

    def _release(self, size: int) -> None:
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()


def _settle(end: Callable[[], None]) -> None:
    """Complete a future; what its callbacks raise is theirs, and does not end the writes of others."""
    try:
        end()
    except (
        BaseException
    ) as err:  # concurrent.futures logs an Exception itself; SystemExit is not one
        log.error("a callback of a write raised an error", exc_info=err)
